use proptest::prelude::*;

use super::*;

fn verifies(hash: &str, password: &str) -> bool {
    PasswordHash::parse(hash).unwrap().verify(password.as_bytes())
}

/// What other programs made: openssl passwd, crypt(3), htpasswd.
const MADE: [(&str, &str); 7] = [
    ("$apr1$abcdefgh$T64oOxnD8c28.dQa.2Lty1", "open sesame"),
    ("$apr1$ab$S8K6Sgp3W8c9Jb6LxgywZ.", ""),
    ("$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5", "Hello world!"),
    (
        "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
        "Hello world!",
    ),
    ("$2b$05$CCCCCCCCCCCCCCCCCCCCC.vTdnMkpWk2uFGdD13bbQkt9V3Bbgxl.", "open sesame"),
    ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U"),
    ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "password"),
];

#[test]
fn what_other_programs_made_is_understood() {
    for (hash, password) in MADE {
        assert!(verifies(hash, password), "{hash}");
        assert!(!verifies(hash, &format!("{password}x")), "{hash}");
        assert!(!verifies(hash, "wrong"), "{hash}");
    }
}

#[test]
fn apaches_name_for_bcrypt_is_the_same() {
    let hash = "$2y$05$CCCCCCCCCCCCCCCCCCCCC.vTdnMkpWk2uFGdD13bbQkt9V3Bbgxl.";
    assert!(verifies(hash, "open sesame"));
}

#[test]
fn what_is_weak_broken_or_costly_is_refused() {
    let error = |text: &str| PasswordHash::parse(text).unwrap_err();
    assert_eq!(error("plain"), PasswordError::Form);
    assert_eq!(error("rqXexS6ZhobKA"), PasswordError::Form);
    assert_eq!(error(""), PasswordError::Form);
    assert_eq!(error("$apr1$salt"), PasswordError::Broken);
    assert_eq!(error("$apr1$saltsalts$T64oOxnD8c28.dQa.2Lty1"), PasswordError::Broken);
    assert_eq!(error("{SHA}abc"), PasswordError::Broken);
    assert_eq!(error("$2y$05$short"), PasswordError::Broken);
    let rest = "CCCCCCCCCCCCCCCCCCCCC.vTdnMkpWk2uFGdD13bbQkt9V3Bbgxl.";
    assert_eq!(error(&format!("$2y$20${rest}")), PasswordError::TooCostly);
    let hash = "5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5";
    assert_eq!(error(&format!("$5$rounds=999999999$salt${hash}")), PasswordError::TooCostly);
}

#[test]
fn a_password_of_unreasonable_length_is_wrong() {
    assert!(!verifies(MADE[0].0, &"x".repeat(100_000)));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(\\$(1|5|6|apr1|2y)\\$|\\{SHA\\})?[ -~]{0,80}") {
        let _ = PasswordHash::parse(&text);
    }
}
