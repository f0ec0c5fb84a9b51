//! What a client takes (RFC 9110 §12.5.3).

/// How many members of the field are read.
const MEMBERS_MAX: usize = 32;

/// A content coding that we write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All of them, those first that we like best: by what they save for the time they take.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in `Content-Encoding`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    fn has_name(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.as_str().as_bytes())
            || (self == Self::Gzip && name.eq_ignore_ascii_case(b"x-gzip"))
    }
}

/// The coding that the client likes best, if it likes one at least as well as none. Without the field,
/// and with one that cannot be read, responses go as they are.
pub fn negotiate<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Coding> {
    let mut likes: [Option<u16>; 3] = [None; 3];
    let mut others = None;
    let mut identity = None;
    let members = lines.flat_map(|line| line.split(|byte| *byte == b','));
    for member in members.take(MEMBERS_MAX) {
        let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let quality = parts.next().map_or(Some(1000), quality).unwrap_or(0);
        if name == b"*" {
            others = Some(quality);
        } else if name.eq_ignore_ascii_case(b"identity") {
            identity = Some(quality);
        } else if let Some(place) = Coding::ALL.iter().position(|coding| coding.has_name(name)) {
            likes[place] = Some(quality);
        }
    }
    let mut best: Option<(Coding, u16)> = None;
    for (coding, told) in Coding::ALL.into_iter().zip(likes) {
        let quality = told.or(others).unwrap_or(0);
        if quality > best.map_or(0, |(_, known)| known) {
            best = Some((coding, quality));
        }
    }
    // Uncompressed is always fine, but only what is named can be liked better.
    best.filter(|(_, quality)| identity.is_none_or(|identity| *quality >= identity))
        .map(|(coding, _)| coding)
}

/// `q=0.5` in thousandths.
fn quality(parameter: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(parameter).ok()?;
    let (name, value) = text.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("q") {
        return None;
    }
    let (whole, fraction) = value.trim().split_once('.').unwrap_or((value.trim(), ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match whole {
        "1" if fraction.bytes().all(|byte| byte == b'0') => Some(1000),
        "0" => format!("{fraction:0<3}").parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(field: &str) -> Option<Coding> {
        negotiate(std::iter::once(field.as_bytes()))
    }

    #[test]
    fn of_what_the_client_likes_equally_ours_is_first() {
        assert_eq!(best("gzip, deflate, br, zstd"), Some(Coding::Zstd));
        assert_eq!(best("gzip, deflate, br"), Some(Coding::Brotli));
        assert_eq!(best("GZIP"), Some(Coding::Gzip));
        assert_eq!(best("x-gzip"), Some(Coding::Gzip));
        assert_eq!(best("*"), Some(Coding::Zstd));
    }

    #[test]
    fn what_the_client_likes_better_counts_more() {
        assert_eq!(best("zstd;q=0.5, br;q=0.8, gzip;q=0.801"), Some(Coding::Gzip));
        assert_eq!(best("*;q=0.5, gzip"), Some(Coding::Gzip));
        assert_eq!(best("zstd;q=0, *"), Some(Coding::Brotli));
        assert_eq!(best("identity, gzip;q=0.5"), None);
        assert_eq!(best("identity;q=0.5, gzip;q=0.5"), Some(Coding::Gzip));
    }

    #[test]
    fn what_is_not_liked_or_not_readable_is_none() {
        for field in [
            "",
            "deflate",
            "gzip;q=0",
            "gzip;q=0.000",
            "gzip;q=2",
            "gzip;q=x",
            "gzip;q=0.1234",
            "gzip;x=1",
            "*;q=0",
        ] {
            assert_eq!(best(field), None, "{field}");
        }
        assert_eq!(negotiate(std::iter::empty()), None);
        let far = format!("{} gzip", "x,".repeat(100));
        assert_eq!(best(&far), None);
    }

    #[test]
    fn lines_count_together() {
        assert_eq!(negotiate([&b"gzip;q=0.5"[..], b"br"].into_iter()), Some(Coding::Brotli));
    }
}
