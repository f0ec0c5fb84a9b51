use super::*;

fn request(authority: &str, target: &str) -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority(authority);
    head.set_target(target).unwrap();
    head
}

fn location(reply: &Reply) -> &str {
    reply.head.headers.get_str("location").unwrap()
}

#[test]
fn https_is_the_same_address_without_the_port_of_http() {
    let reply = to_https(308, &request("shop.org:8080", "/a?b=c"), 443);
    assert_eq!((reply.head.status.as_u16(), location(&reply)), (308, "https://shop.org/a?b=c"));
    assert_eq!(location(&to_https(301, &request("shop.org", "/"), 8443)), "https://shop.org:8443/");
    assert_eq!(location(&to_https(301, &request("[::1]:80", "/"), 443)), "https://[::1]/");
}

#[test]
fn only_the_very_root_leads_to_the_applications() {
    assert_eq!(location(&to_app_root("/app", &request("a", "/")).unwrap()), "/app");
    assert!(to_app_root("/app", &request("a", "/x")).is_none());
    assert!(to_app_root("/", &request("a", "/")).is_none());
}

#[test]
fn parts_that_are_not_set_stay() {
    let matched = PathMatch::Prefix("/old".into());
    let go = |settings: Redirect, authority: &str| {
        let filter = RedirectFilter::new(&settings).unwrap();
        let reply = filter.reply(&request(authority, "/old/x?y"), &matched);
        (reply.head.status.as_u16(), location(&reply).to_owned())
    };
    let settings = Redirect { host: Some("www.a.org".into()), ..Redirect::default() };
    assert_eq!(go(settings, "a.org:81"), (308, "http://www.a.org:81/old/x?y".into()));
    let settings = Redirect { scheme: Some("https".into()), status: 301, ..Redirect::default() };
    assert_eq!(go(settings, "a.org:81"), (301, "https://a.org/old/x?y".into()));
    let settings = Redirect { replace_prefix: Some("/new".into()), ..Redirect::default() };
    assert_eq!(go(settings, "a.org"), (308, "http://a.org/new/x?y".into()));
    let url = Some("https://b.org$request_uri".into());
    let settings = Redirect { url, status: 302, ..Redirect::default() };
    assert_eq!(go(settings, "a.org"), (302, "https://b.org/old/x?y".into()));
    let settings = Redirect { path: Some("/other".into()), ..Redirect::default() };
    assert_eq!(go(settings, "a.org"), (308, "http://a.org/other".into()), "what is written");
    let settings = Redirect { status: 200, ..Redirect::default() };
    assert_eq!(go(settings, "a.org").0, 308, "not a redirect at all");
}

#[test]
fn a_prefix_is_replaced_by_whole_elements() {
    let replaced =
        |path, prefix: &str, by| replace_prefix(path, &PathMatch::Prefix(prefix.into()), by);
    assert_eq!(replaced("/a/b", "/a", "/x"), "/x/b");
    assert_eq!(replaced("/a", "/a", "/x"), "/x");
    assert_eq!(replaced("/a/", "/a/", "/x/"), "/x/");
    assert_eq!(replaced("/a/b", "/a/", "/"), "/b");
    assert_eq!(replaced("/a", "/a", "/"), "/");
    assert_eq!(replaced("/a/b", "/", "/x"), "/x/a/b");
}
