use super::*;
use crate::table::BasicUser;

const BCRYPT: &str = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.vTdnMkpWk2uFGdD13bbQkt9V3Bbgxl.";
const SHA: &str = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";

fn filter(users: &[(&str, &str)]) -> BasicFilter {
    let user =
        |(name, hash): &(&str, &str)| BasicUser { name: (*name).into(), hash: (*hash).into() };
    let settings =
        BasicAuth { realm: "the \"shop\"\r\n".into(), users: users.iter().map(user).collect() };
    BasicFilter::new(&settings).0
}

fn request(value: Option<&str>) -> RequestHead {
    let mut head = RequestHead::new();
    if let Some(value) = value {
        head.headers.push("Authorization", value);
    }
    head
}

fn as_user(name: &str, password: &str) -> RequestHead {
    request(Some(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))))
}

async fn judged(filter: &BasicFilter, head: &RequestHead, checked: &Checked) -> bool {
    match filter.judge(head, checked) {
        Verdict::Right => true,
        Verdict::Wrong => false,
        Verdict::Unknown(check) => filter.check(check, checked).await.unwrap(),
    }
}

#[tokio::test]
async fn only_the_right_password_of_a_known_user_is_right() {
    let (filter, checked) = (filter(&[("anna", BCRYPT), ("bert", SHA)]), Checked::default());
    // Twice: the second time from memory.
    for _ in 0..2 {
        assert!(judged(&filter, &as_user("anna", "open sesame"), &checked).await);
        assert!(judged(&filter, &as_user("bert", "password"), &checked).await);
        assert!(!judged(&filter, &as_user("anna", "password"), &checked).await);
        assert!(!judged(&filter, &as_user("bert", "open sesame"), &checked).await);
        assert!(!judged(&filter, &as_user("carl", "open sesame"), &checked).await);
        assert!(!judged(&filter, &as_user("carl", "password"), &checked).await);
        assert!(!judged(&filter, &as_user("", ""), &checked).await);
    }
}

#[tokio::test]
async fn a_slow_check_is_made_once() {
    let (filter, checked) = (filter(&[("anna", BCRYPT)]), Checked::default());
    let head = as_user("anna", "open sesame");
    assert!(matches!(filter.judge(&head, &checked), Verdict::Unknown(_)));
    assert!(judged(&filter, &head, &checked).await);
    assert!(matches!(filter.judge(&head, &checked), Verdict::Right));
    // A changed hash is another question.
    let changed = self::filter(&[("anna", &BCRYPT.replace("2b", "2y"))]);
    assert!(matches!(changed.judge(&head, &checked), Verdict::Unknown(_)));
}

#[test]
fn what_is_not_basic_is_wrong() {
    let (filter, checked) = (filter(&[("anna", SHA)]), Checked::default());
    let long = format!("Basic {}", "A".repeat(CREDENTIALS_BYTES_MAX + 4));
    for value in
        [None, Some("Bearer x"), Some("Basic"), Some("Basic !"), Some("Basic YQ=="), Some(&long)]
    {
        assert!(matches!(filter.judge(&request(value), &checked), Verdict::Wrong), "{value:?}");
    }
    let nobody = self::filter(&[]);
    assert!(matches!(nobody.judge(&as_user("a", "b"), &checked), Verdict::Wrong));
}

#[test]
fn a_refusal_says_what_is_needed() {
    let reply = filter(&[]).refusal(&request(None));
    assert_eq!(reply.head.status, 401);
    let challenge = reply.head.headers.get_str("www-authenticate");
    assert_eq!(challenge, Some("Basic realm=\"the shop\", charset=\"UTF-8\""));
}

#[test]
fn a_hash_that_cannot_be_used_is_reported_by_user() {
    let user = BasicUser { name: "anna".into(), hash: "plain".into() };
    let (filter, problems) = BasicFilter::new(&BasicAuth { realm: "".into(), users: vec![user] });
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("anna") && problems[0].contains("htpasswd -B"));
    assert!(filter.users.is_empty());
}

#[test]
fn memory_is_bounded_and_keeps_the_right_ones() {
    let checked = Checked::default();
    let now = Instant::now();
    let right = checked.tag("h", b"right", true);
    checked.remember(right, true, now);
    for number in 0..REMEMBERED_MAX as u32 + 100 {
        checked.remember(checked.tag("h", &number.to_be_bytes(), true), false, now);
    }
    assert!(checked.remembered.lock().len() <= REMEMBERED_MAX);
    assert_eq!(checked.recall(&right, now), Some(true));
    assert_eq!(checked.recall(&right, now + REMEMBERED_FOR), None);
}
