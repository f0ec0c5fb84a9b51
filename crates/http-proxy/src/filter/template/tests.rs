use super::*;

fn request() -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("shop.org:8443");
    head.set_path("/a b");
    head.set_query(Some("c=d&e"));
    head.headers.push("X-Team", "blue");
    head
}

fn fill(text: &str) -> String {
    Template::parse(text).unwrap().fill(&request())
}

#[test]
fn names_are_filled_by_the_request() {
    assert_eq!(fill("https://$host/x"), "https://shop.org/x");
    assert_eq!(fill("$scheme://$http_host$request_uri"), "http://shop.org:8443/a b?c=d&e");
    assert_eq!(fill("/start?rd=$escaped_request_uri"), "/start?rd=%2Fa%20b%3Fc%3Dd%26e");
    assert_eq!(fill("${http_x_team}-$remote_addr-$$"), "blue-0.0.0.0-$");
    assert_eq!(fill("plain"), "plain");
    assert_eq!(fill(""), "");
}

#[test]
fn an_unknown_name_is_refused_by_its_name() {
    assert_eq!(Template::parse("a$lua_code").unwrap_err(), UnknownName("lua_code".into()));
    assert_eq!(Template::parse("a$").unwrap_err(), UnknownName(String::new()));
    assert!(Template::parse("${unclosed").is_err());
    // It goes into logs: short, and on one line.
    let long = format!("${{a\n{}}}", "x".repeat(500));
    let shown = Template::parse(&long).unwrap_err().to_string();
    assert!(shown.starts_with("$a\\nxxx") && !shown.contains('\n'), "{shown}");
    assert!(shown.chars().filter(|it| *it == 'x').count() < 70, "{shown}");
}

#[test]
fn what_is_filled_in_is_not_read_again() {
    let mut head = request();
    head.headers.push("evil", "$host");
    assert_eq!(Template::parse("$http_evil").unwrap().fill_plain(&head), "$host");
}

#[test]
fn what_a_client_writes_stays_one_value_of_an_address() {
    let mut head = request();
    head.headers.push("X-Key", "a&admin=1/../b c");
    head.headers.push("Cookie", "id=7; x=y");
    head.headers.push("Authorization", "Basic YW5uYTpwdw==");
    let fill = |text: &str| Template::parse(text).unwrap().fill(&head);
    assert_eq!(fill("http://x/?k=$http_x_key"), "http://x/?k=a%26admin%3D1%2F..%2Fb%20c");
    assert_eq!(fill("$cookie_id-$remote_user-$http_none"), "7-anna-");
    assert!(Template::parse("$http_").is_err() && Template::parse("$cookie_").is_err());
}

#[test]
fn an_address_leads_where_it_was_written_to() {
    let leads = |text: &str| Template::parse(text).unwrap().leads();
    for (text, who) in [
        ("https://auth.svc/check?k=$http_x_key", Leads::AsWritten),
        ("/start?rd=$escaped_request_uri", Leads::AsWritten),
        ("https://auth.svc$uri?$args", Leads::AsWritten),
        ("https://auth.svc/$host/$http_host", Leads::AsWritten),
        ("https://$host/oauth2/auth", Leads::ToRequestedHost),
        ("https://$host:4180/oauth2/auth", Leads::ToRequestedHost),
        ("http://auth.$host$request_uri", Leads::ToRequestedHost),
        ("$scheme://$http_host$request_uri", Leads::ToRequestedPort),
        ("//$http_host/$host", Leads::ToRequestedPort),
        ("https://$http_x_host/", Leads::Anywhere),
        ("https://auth.svc$http_x", Leads::Anywhere),
        ("http$args", Leads::Anywhere),
        ("//$http_x/a/b/c", Leads::Anywhere),
        ("/$http_x/login", Leads::AsWritten),
        ("/$host/login", Leads::AsWritten),
        // A path may begin with two slashes, a query with one, and a field may be empty.
        ("$request_uri", Leads::Anywhere),
        ("/$uri", Leads::Anywhere),
        ("/$args", Leads::Anywhere),
        ("/$http_x/$http_y", Leads::Anywhere),
        ("https:$request_uri", Leads::Anywhere),
        ("https://$request_uri", Leads::Anywhere),
    ] {
        assert_eq!(leads(text), who, "{text}");
    }
}
