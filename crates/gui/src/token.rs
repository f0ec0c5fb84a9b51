//! Tokens: who may look, and who may act.
//!
//! A token is 32 random bytes in hexadecimal, kept in a file that only its owner reads. Only digests
//! are held, and they are compared in constant time. Wrong tokens are answered more and more tersely:
//! after some different ones of an address within a minute the answer is 429, and the cluster is asked
//! only now and then about what else comes from there. A right token of ours is let in even then, and so
//! is one that the cluster confirmed a moment ago: whoever sends wrong ones cannot lock out the people
//! of the machine, which all have one address where they come by a port-forward. Guessing 256 bits is
//! hopeless at any rate.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, digest, rand};
use parking_lot::Mutex;

use crate::values::Role;

/// How short a token of somebody's own may be.
pub const LENGTH_MIN: usize = 24;
/// How long.
pub const LENGTH_MAX: usize = 8192;
/// Failures of an address within a minute before the answer is 429.
pub const FAILURES_MAX: u32 = 10;
const FAILURES_WINDOW: Duration = Duration::from_mins(1);
/// How many addresses are remembered.
const ADDRESSES_MAX: usize = 1024;
/// How long an answer of the cluster about a token counts, and how many are kept.
const REVIEW_TIME: Duration = Duration::from_secs(30);
const REVIEWS_MAX: usize = 256;
/// How often the cluster is asked about tokens from where too many wrong ones came.
const REVIEW_PAUSE: Duration = Duration::from_millis(500);

type Digest = [u8; 32];

/// By what failures are counted: whoever has one IPv6 address has all of its /64.
fn network_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & (u128::MAX << 64)).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// When the cluster was asked about a token, and what it said.
type Review = (Instant, Option<(String, Role)>);

fn digest_of(token: &str) -> Digest {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    out
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Makes a token.
pub fn generate() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    rand::fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(hex(&bytes))
}

/// Reads a token from a file of ours, or writes a fresh one there with mode 0600; also says whether it did.
/// A file that others could read is theirs no more.
pub fn read_or_make(path: &Path) -> io::Result<(String, bool)> {
    if others_read(path) {
        keep_from_others(path)?;
        tracing::warn!(
            file = %path.display(),
            "others could read the admin API's token; now they cannot, but who has read it has it: \
             remove the file and start again for another one"
        );
    }
    match read(path) {
        Ok(token) => Ok((token, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = generate()?;
            // Whole or not at all, and nobody else's is replaced.
            let fresh = path.with_extension(format!("new.{}", std::process::id()));
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let written = options.open(&fresh).and_then(|mut file| {
                writeln!(file, "{token}")?;
                file.sync_all()?;
                std::fs::hard_link(&fresh, path)
            });
            let _ = std::fs::remove_file(&fresh);
            match written {
                Ok(()) => Ok((token, true)),
                // Somebody was quicker.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    read(path).map(|token| (token, false))
                }
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether anybody but a file's owner may read or write it. Where files have no modes, nobody knows.
pub fn others_read(path: &Path) -> bool {
    #[cfg(unix)]
    let open = std::fs::metadata(path)
        .is_ok_and(|it| std::os::unix::fs::PermissionsExt::mode(&it.permissions()) & 0o077 != 0);
    #[cfg(not(unix))]
    let (open, _) = (false, path);
    open
}

#[cfg(unix)]
fn keep_from_others(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
}

/// Where files have no modes there is nothing to take from anybody, but there has to be a file.
#[cfg(not(unix))]
fn keep_from_others(path: &Path) -> io::Result<()> {
    std::fs::metadata(path).map(drop)
}

/// Reads a token from a file. Who else may read that is asked by [`others_read`].
pub fn read(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if token.len() < LENGTH_MIN || token.len() > LENGTH_MAX {
        return Err(bad(format!(
            "a token has {LENGTH_MIN} to {LENGTH_MAX} characters; make one with: openssl rand -hex 32"
        )));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("a token is one word of ASCII".to_owned()));
    }
    Ok(token.to_owned())
}

/// What is known of a token that is none of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reviewed {
    /// What the cluster said about it a moment ago.
    Said(Option<(String, Role)>),
    /// The cluster has to be asked.
    Ask,
    /// The same, but too many wrong ones came from there.
    NotNow,
}

/// A token's digest, with whose it is.
struct Entry {
    digest: Digest,
    name: String,
    role: Role,
}

/// The tokens that are known.
pub struct Tokens {
    entries: Vec<Entry>,
    /// Whether the cluster is asked about others.
    pub review: bool,
    /// How long its answer about one counts.
    pub review_time: Duration,
    /// How often it is asked about tokens from where too many wrong ones came.
    pub review_pause: Duration,
    failures: Mutex<BTreeMap<IpAddr, (Instant, u32)>>,
    /// What the cluster confirmed, and what it did not: apart, so that wrong ones take no right one's place.
    confirmed: Mutex<HashMap<Digest, Review>>,
    refused: Mutex<HashMap<Digest, Review>>,
    /// When the cluster was last asked for one from where too many wrong ones came.
    asked: Mutex<Option<Instant>>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            review: false,
            review_time: REVIEW_TIME,
            review_pause: REVIEW_PAUSE,
            failures: Mutex::default(),
            confirmed: Mutex::default(),
            refused: Mutex::default(),
            asked: Mutex::default(),
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("review", &self.review).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Adds a token.
    #[must_use]
    pub fn with(mut self, name: &str, role: Role, token: &str) -> Self {
        self.entries.push(Entry { digest: digest_of(token), name: name.to_owned(), role });
        self
    }

    /// Whose a token is, if it is one of ours. All that are known are compared, whichever fits.
    pub fn check(&self, token: &str) -> Option<(String, Role)> {
        let digest = digest_of(token);
        let mut found = None;
        for entry in &self.entries {
            if constant_time::verify_slices_are_equal(&entry.digest, &digest).is_ok() {
                found = Some(entry);
            }
        }
        found.map(|entry| (entry.name.clone(), entry.role))
    }

    /// What the cluster said about a token a moment ago, or whether it may be asked now.
    pub fn reviewed(&self, token: &str, from: IpAddr) -> Reviewed {
        let digest = digest_of(token);
        for reviews in [&self.confirmed, &self.refused] {
            if let Some((at, answer)) = reviews.lock().get(&digest)
                && at.elapsed() < self.review_time
            {
                return Reviewed::Said(answer.clone());
            }
        }
        if !self.is_over(from) {
            return Reviewed::Ask;
        }
        let mut asked = self.asked.lock();
        if asked.is_some_and(|at| at.elapsed() < self.review_pause) {
            return Reviewed::NotNow;
        }
        *asked = Some(Instant::now());
        Reviewed::Ask
    }

    /// Remembers what it said.
    pub fn remember(&self, token: &str, answer: Option<(String, Role)>) {
        let digest = digest_of(token);
        let (holds, other) = match answer {
            Some(_) => (&self.confirmed, &self.refused),
            None => (&self.refused, &self.confirmed),
        };
        other.lock().remove(&digest);
        let mut reviews = holds.lock();
        if reviews.len() >= REVIEWS_MAX {
            reviews.retain(|_, (at, _)| at.elapsed() < self.review_time);
        }
        if reviews.len() >= REVIEWS_MAX {
            let some = reviews.keys().next().copied();
            some.and_then(|some| reviews.remove(&some));
        }
        reviews.insert(digest, (Instant::now(), answer));
    }

    /// A wrong token came from there; whether that is too often.
    pub fn failed(&self, from: IpAddr) -> bool {
        let from = network_of(from);
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&from) {
            failures.retain(|_, (since, _)| since.elapsed() < FAILURES_WINDOW);
            if failures.len() >= ADDRESSES_MAX {
                // Nobody can make us remember without end; the first address makes room.
                failures.pop_first();
            }
        }
        let (since, count) = failures.entry(from).or_insert((Instant::now(), 0));
        if since.elapsed() >= FAILURES_WINDOW {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        *count > FAILURES_MAX
    }

    fn is_over(&self, from: IpAddr) -> bool {
        let failures = self.failures.lock();
        failures.get(&network_of(from)).is_some_and(|(since, count)| {
            since.elapsed() < FAILURES_WINDOW && *count >= FAILURES_MAX
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_their_digest_and_have_roles() {
        let tokens =
            Tokens::default().with("admin", Role::Admin, "a").with("reader", Role::Read, "b");
        let tokens = Tokens { review_pause: Duration::from_hours(1), ..tokens };
        let from = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(tokens.check("a"), Some(("admin".into(), Role::Admin)));
        assert_eq!(tokens.check("b"), Some(("reader".into(), Role::Read)));
        assert_eq!(tokens.check("c"), None);
        assert_eq!(tokens.reviewed("c", from), Reviewed::Ask);
        for _ in 0..FAILURES_MAX {
            assert!(!tokens.failed(from));
        }
        assert!(tokens.failed(from));
        assert_eq!(tokens.reviewed("c", from), Reviewed::Ask, "now and then");
        assert_eq!(tokens.reviewed("d", from), Reviewed::NotNow);
        assert_eq!(tokens.reviewed("c", IpAddr::from([127, 0, 0, 2])), Reviewed::Ask);
        assert_eq!(tokens.check("a"), Some(("admin".into(), Role::Admin)));
        let anna = Some(("anna".to_owned(), Role::Admin));
        tokens.remember("e", anna.clone());
        assert_eq!(tokens.reviewed("e", from), Reviewed::Said(anna));
        assert!(!format!("{tokens:?}").contains("admin"));
    }

    #[test]
    fn wrong_tokens_take_no_right_ones_place_in_what_is_remembered() {
        let (tokens, from) = (Tokens::default(), IpAddr::from([127, 0, 0, 1]));
        for i in 0..REVIEWS_MAX * 2 {
            tokens.remember(&format!("wrong {i}"), None);
        }
        let anna = Some(("anna".to_owned(), Role::Admin));
        tokens.remember("hers", anna.clone());
        assert_eq!(tokens.reviewed("hers", from), Reviewed::Said(anna));
        assert!(tokens.refused.lock().len() <= REVIEWS_MAX);
        tokens.remember("hers", None);
        assert_eq!(tokens.reviewed("hers", from), Reviewed::Said(None), "it was taken from her");
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_counted_as_one() {
        let tokens = Tokens { review_pause: Duration::from_hours(1), ..Tokens::default() };
        let of = |text: &str| -> IpAddr { text.parse().unwrap() };
        for i in 0..FAILURES_MAX {
            assert!(!tokens.failed(of(&format!("2001:db8::{i:x}:1"))));
        }
        assert!(tokens.failed(of("2001:db8::ffff")));
        assert!(!tokens.failed(of("2001:db8:0:1::1")), "another's network");
        assert!(!tokens.failed(of("192.0.2.1")) && !tokens.failed(of("::ffff:192.0.2.1")));
        assert_eq!(tokens.reviewed("c", of("2001:db8::abcd")), Reviewed::Ask, "now and then");
        assert_eq!(tokens.reviewed("c", of("2001:db8::abcd")), Reviewed::NotNow);
    }

    #[test]
    fn addresses_beyond_the_bound_are_not_remembered() {
        let tokens = Tokens::default();
        for i in 0..ADDRESSES_MAX as u32 * 2 {
            tokens.failed(IpAddr::from(i.to_be_bytes()));
        }
        assert!(tokens.failures.lock().len() <= ADDRESSES_MAX);
    }

    #[cfg(unix)]
    #[test]
    fn a_token_file_is_made_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        let (token, fresh) = read_or_make(&path).unwrap();
        assert!(fresh && token.len() == 64);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_make(&path).unwrap(), (token, false));
        assert!(!others_read(&path));
        std::fs::write(&path, "short\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("24"));
    }

    #[cfg(unix)]
    #[test]
    fn a_token_file_of_ours_that_others_can_read_is_taken_from_them() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        let (token, _) = read_or_make(&path).unwrap();
        for mode in [0o644, 0o640, 0o602, 0o666] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert!(others_read(&path), "{mode:o}");
            assert_eq!(read_or_make(&path).unwrap(), (token.clone(), false));
            let now = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(now, 0o600, "{mode:o}");
        }
    }
}
