//! Passwords as `htpasswd` keeps them.
//!
//! | form | made by | |
//! |---|---|---|
//! | `$2y$…` (also `$2a$`, `$2b$`) | `htpasswd -B` | bcrypt: the one to choose |
//! | `$5$…`, `$6$…` | `htpasswd -2`, `-5`; `mkpasswd` | SHA-256 and SHA-512 crypt |
//! | `$apr1$…`, `$1$…` | `htpasswd -m`, `openssl passwd -apr1` | MD5 crypt, as many old files have it |
//! | `{SHA}…` | `htpasswd -s` | SHA-1 without salt |
//!
//! Refused: the DES of `htpasswd -d`, which sees eight letters, and plain text. Comparing takes the
//! same time however much of a hash is right.

mod crypt;
mod md5;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The highest cost of bcrypt that is taken: above, one request costs a core for a second.
const BCRYPT_COST_MAX: u32 = 14;
/// The most rounds of SHA crypt, for the same reason.
const ROUNDS_MAX: u32 = 500_000;
/// The longest password that is tried.
const PASSWORD_BYTES_MAX: usize = 512;

/// Why a hash cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Plain, DES, or something else.
    #[error("its form is not supported: make it anew with htpasswd -B")]
    Form,
    /// It begins well and does not go on so.
    #[error("it is cut off or mistyped: make it anew with htpasswd -B")]
    Broken,
    /// It would take too long to check.
    #[error("it takes too much time to check: make it anew with htpasswd -B -C 10")]
    TooCostly,
}

/// A hash that passwords can be compared with.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Form);

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Bcrypt(String),
    Md5 { magic: &'static str, salt: String, hash: String },
    Sha { wide: bool, rounds: u32, salt: String, hash: String },
    Sha1(Vec<u8>),
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

impl PasswordHash {
    /// Reads a hash from a line of a file, without the name.
    pub fn parse(text: &str) -> Result<Self, PasswordError> {
        let form = if let Some(rest) = text.strip_prefix("{SHA}") {
            let raw = STANDARD.decode(rest).map_err(|_| PasswordError::Broken)?;
            if raw.len() != 20 {
                return Err(PasswordError::Broken);
            }
            Form::Sha1(raw)
        } else if let Some(rest) = text.strip_prefix("$apr1$") {
            md5_form("$apr1$", rest)?
        } else if let Some(rest) = text.strip_prefix("$1$") {
            md5_form("$1$", rest)?
        } else if let Some(rest) = text.strip_prefix("$5$") {
            sha_form(false, rest)?
        } else if let Some(rest) = text.strip_prefix("$6$") {
            sha_form(true, rest)?
        } else if ["$2y$", "$2a$", "$2b$", "$2x$"].iter().any(|start| text.starts_with(start)) {
            bcrypt_form(text)?
        } else {
            return Err(PasswordError::Form);
        };
        Ok(Self(form))
    }

    /// Whether checking takes long enough to be done aside.
    pub fn is_slow(&self) -> bool {
        !matches!(self.0, Form::Sha1(_))
    }

    /// Whether this is the password.
    pub fn verify(&self, password: &[u8]) -> bool {
        if password.len() > PASSWORD_BYTES_MAX || password.contains(&0) {
            return false;
        }
        let same = |ours: &[u8], theirs: &[u8]| verify_slices_are_equal(ours, theirs).is_ok();
        match &self.0 {
            Form::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
            Form::Md5 { magic, salt, hash } => {
                let made = crypt::md5_crypt(password, magic, salt.as_bytes());
                same(made.as_bytes(), hash.as_bytes())
            }
            Form::Sha { wide, rounds, salt, hash } => {
                let algorithm = if *wide { &SHA512 } else { &SHA256 };
                let made = crypt::sha_crypt(algorithm, password, salt.as_bytes(), *rounds);
                same(made.as_bytes(), hash.as_bytes())
            }
            Form::Sha1(hash) => same(digest(&SHA1_FOR_LEGACY_USE_ONLY, password).as_ref(), hash),
        }
    }
}

/// Whether text is made of the letters that crypt writes with.
fn is_crypt(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/'))
}

fn md5_form(magic: &'static str, rest: &str) -> Result<Form, PasswordError> {
    let (salt, hash) = rest.split_once('$').ok_or(PasswordError::Broken)?;
    if salt.len() > 8 || hash.len() != 22 || !is_crypt(hash) {
        return Err(PasswordError::Broken);
    }
    Ok(Form::Md5 { magic, salt: salt.to_owned(), hash: hash.to_owned() })
}

fn sha_form(wide: bool, rest: &str) -> Result<Form, PasswordError> {
    let (rounds, rest) = match rest.strip_prefix("rounds=") {
        Some(with) => {
            let (rounds, rest) = with.split_once('$').ok_or(PasswordError::Broken)?;
            let rounds: u32 = rounds.parse().map_err(|_| PasswordError::Broken)?;
            (rounds.max(1000), rest)
        }
        None => (5000, rest),
    };
    if rounds > ROUNDS_MAX {
        return Err(PasswordError::TooCostly);
    }
    let (salt, hash) = rest.split_once('$').ok_or(PasswordError::Broken)?;
    let length = if wide { 86 } else { 43 };
    if salt.len() > 16 || hash.len() != length || !is_crypt(hash) {
        return Err(PasswordError::Broken);
    }
    Ok(Form::Sha { wide, rounds, salt: salt.to_owned(), hash: hash.to_owned() })
}

fn bcrypt_form(text: &str) -> Result<Form, PasswordError> {
    let mut parts = text.split('$').skip(2);
    let cost = parts.next().and_then(|cost| cost.parse::<u32>().ok());
    let rest = parts.next().unwrap_or_default();
    let (Some(cost), None) = (cost, parts.next()) else { return Err(PasswordError::Broken) };
    if rest.len() != 53 || !is_crypt(rest) || cost < 4 {
        return Err(PasswordError::Broken);
    }
    if cost > BCRYPT_COST_MAX {
        return Err(PasswordError::TooCostly);
    }
    Ok(Form::Bcrypt(text.to_owned()))
}

#[cfg(test)]
mod tests;
