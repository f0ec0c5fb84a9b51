//! A backend's settings: what there is to set, and what was set.
//!
//! A backend declares [`FlagSpec`]s; the command line and the configuration file fill
//! [`FlagValues`]; the backend reads them by type. Every error names the flag.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// One setting of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagSpec {
    /// Its name, as after `--`.
    pub name: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Its value when nobody sets it.
    pub default: &'static str,
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No such setting.
    #[error("unknown flag --{name}; known here: {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The value is not of the right form.
    #[error("--{name}: {value:?} is not {expected}")]
    Invalid {
        /// Which setting.
        name: String,
        /// What it was set to.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// The values of a backend's settings: those that were set, and defaults for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlagValues {
    values: BTreeMap<&'static str, String>,
}

impl FlagValues {
    /// The values for `specs`; of settings given twice the last holds.
    pub fn new<N, V>(
        specs: &'static [FlagSpec],
        given: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, FlagError>
    where
        N: AsRef<str>,
        V: Into<String>,
    {
        let mut values: BTreeMap<&'static str, String> =
            specs.iter().map(|spec| (spec.name, spec.default.to_owned())).collect();
        for (name, value) in given {
            let Some(slot) = values.get_mut(name.as_ref()) else {
                return Err(unknown(name.as_ref(), values.into_keys().collect()));
            };
            *slot = value.into();
        }
        Ok(Self { values })
    }

    /// Every setting with its value, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<&str, FlagError> {
        self.values
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| unknown(name, self.values.keys().copied().collect()))
    }

    /// Anything that can be read from a text; `expected` completes "is not …".
    pub fn parse<T: FromStr>(&self, name: &str, expected: &'static str) -> Result<T, FlagError> {
        let text = self.text(name)?;
        text.trim().parse().map_err(|_| invalid(name, text, expected))
    }

    /// Yes or no.
    pub fn bool(&self, name: &str) -> Result<bool, FlagError> {
        self.parse(name, "true or false")
    }

    /// A whole number.
    pub fn u32(&self, name: &str) -> Result<u32, FlagError> {
        self.parse(name, "a whole number")
    }

    /// A port, 1 to 65535.
    pub fn port(&self, name: &str) -> Result<u16, FlagError> {
        let port: std::num::NonZeroU16 = self.parse(name, "a port from 1 to 65535")?;
        Ok(port.get())
    }

    /// A duration with a unit, such as `500ms`, `30s`, `5m` or `1h`; `0` needs none.
    pub fn duration(&self, name: &str) -> Result<Duration, FlagError> {
        let text = self.text(name)?;
        parse_duration(text.trim())
            .ok_or_else(|| invalid(name, text, "a duration such as 500ms, 30s, 5m or 1h"))
    }

    /// A comma-separated list; empty entries are left out.
    pub fn list<T: FromStr>(
        &self,
        name: &str,
        expected: &'static str,
    ) -> Result<Vec<T>, FlagError> {
        let entries = self.text(name)?.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(|entry| entry.parse().map_err(|_| invalid(name, entry, expected))).collect()
    }
}

fn unknown(name: &str, known: Vec<&'static str>) -> FlagError {
    FlagError::Unknown { name: name.to_owned(), known }
}

fn invalid(name: &str, value: &str, expected: &'static str) -> FlagError {
    FlagError::Invalid { name: name.to_owned(), value: value.to_owned(), expected }
}

fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits_end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits_end);
    let number: u64 = number.parse().ok()?;
    let seconds_per_unit = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    number.checked_mul(seconds_per_unit).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[FlagSpec] = &[
        FlagSpec { name: "scheduler", help: "how to choose an endpoint", default: "rr" },
        FlagSpec { name: "strict-arp", help: "answer ARP only where due", default: "false" },
        FlagSpec { name: "exclude", help: "ports to leave alone", default: "" },
        FlagSpec { name: "timeout", help: "how long", default: "15m" },
    ];

    fn values(given: &[(&str, &str)]) -> Result<FlagValues, FlagError> {
        FlagValues::new(SPECS, given.iter().copied())
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let values = values(&[("strict-arp", "true")]).unwrap();
        assert_eq!(values.text("scheduler").unwrap(), "rr");
        assert!(values.bool("strict-arp").unwrap());
        assert_eq!(values.duration("timeout").unwrap(), Duration::from_mins(15));
        assert_eq!(values.list::<u16>("exclude", "a port").unwrap(), [] as [u16; 0]);
    }

    #[test]
    fn an_unknown_flag_is_refused_with_the_known_ones() {
        let error = values(&[("shceduler", "wrr")]).unwrap_err().to_string();
        assert!(
            error.contains("--shceduler") && error.contains("scheduler, strict-arp"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_value_is_refused_by_name() {
        let values = values(&[("strict-arp", "maybe"), ("exclude", "80, x"), ("timeout", "5")]);
        let values = values.unwrap();
        let error = values.bool("strict-arp").unwrap_err().to_string();
        assert_eq!(error, "--strict-arp: \"maybe\" is not true or false");
        assert!(values.list::<u16>("exclude", "a port").is_err());
        assert!(values.duration("timeout").is_err());
        assert_eq!(values.port("timeout").unwrap(), 5);
    }

    #[test]
    fn durations_have_units_and_do_not_overflow() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("0"), Some(Duration::ZERO));
        assert_eq!(parse_duration("1h"), Some(Duration::from_hours(1)));
        for bad in ["", "s", "1", "-1s", "1d", "1.5s", "99999999999999999999h", "6000000000000000h"]
        {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
