use super::*;
use crate::head::{Scheme, TlsInfo};
use crate::table::{
    BackendId, BasicAuth, BasicUser, Cors, HeaderEdits, HostMatch, PathMatch, RateLimit,
    SourceRanges,
};

fn filters() -> Filters {
    Filters::new(Some(Arc::new(CertificateStore::new().unwrap())), 443, true)
}

fn route(policy: Policy) -> RouteFilters {
    let path = PathMatch::Prefix("/".into());
    let mut route = Route::forward("n/i/0/0", HostMatch::Any, path, BackendId::new("n/s:80"));
    route.policy = Arc::new(policy);
    let (filters, problems) = RouteFilters::new(&route);
    assert!(problems.is_empty(), "{problems:?}");
    filters
}

fn request() -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("shop.org");
    head.client.address = "192.0.2.1".parse().unwrap();
    head
}

fn status(route: &RouteFilters, filters: &Filters, head: &RequestHead) -> Option<u16> {
    match route.check(filters, head, &mut Passed::default()) {
        Next::Go => None,
        Next::Answer(reply) => Some(reply.head.status.as_u16()),
        Next::Authorise => panic!("it would have to wait"),
    }
}

/// A policy that every filter would answer, if its turn came.
fn everything() -> Policy {
    Policy {
        sources: SourceRanges { allow: vec!["10.0.0.0/8".parse().unwrap()], deny: Vec::new() },
        rates: vec![RateLimit {
            requests: 1,
            per: Duration::from_hours(1),
            burst: 0,
            except: Vec::new(),
        }],
        tls_redirect: TlsRedirect::On(308),
        auth: vec![Auth::Basic(BasicAuth {
            realm: "r".into(),
            users: vec![BasicUser {
                name: "a".into(),
                hash: "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".into(),
            }],
        })],
        cors: Some(Cors {
            origins: vec!["*".into()],
            methods: vec!["GET".into()],
            headers: Vec::new(),
            expose_headers: Vec::new(),
            credentials: false,
            max_age: Duration::ZERO,
        }),
        ..Policy::default()
    }
}

#[test]
fn a_bare_route_lets_everything_pass() {
    let route = route(Policy::default());
    assert!(!route.any);
    assert_eq!(status(&route, &filters(), &request()), None);
}

#[test]
fn filters_are_asked_in_their_order() {
    let (route, filters) = (route(everything()), filters());
    let mut head = request();
    assert_eq!(status(&route, &filters, &head), Some(403), "first the address");
    head.client.address = "10.0.0.1".parse().unwrap();
    assert_eq!(status(&route, &filters, &head), Some(308), "then https");
    assert_eq!(status(&route, &filters, &head), Some(429), "and that counted as a request");
    head.client.address = "10.0.0.2".parse().unwrap();
    head.scheme = Scheme::Https;
    assert_eq!(status(&route, &filters, &head), Some(401), "then the password");
    head.client.address = "10.0.0.3".parse().unwrap();
    head.headers.push("Origin", "https://x");
    head.headers.push("Access-Control-Request-Method", "GET");
    head.method = http::Method::OPTIONS;
    assert_eq!(status(&route, &filters, &head), Some(204), "before it the browser's question");
    head.client.address = "10.0.0.4".parse().unwrap();
    head.method = http::Method::GET;
    head.headers.push("Authorization", "Basic YTpwYXNzd29yZA==");
    assert_eq!(status(&route, &filters, &head), None);
}

#[test]
fn a_denied_client_does_not_use_up_its_rate() {
    let (route, filters) = (route(everything()), filters());
    let mut head = request();
    for _ in 0..3 {
        assert_eq!(status(&route, &filters, &head), Some(403));
    }
    assert!(filters.rates.is_empty());
    head.client.address = "10.0.0.1".parse().unwrap();
    assert_eq!(status(&route, &filters, &head), Some(308));
}

#[test]
fn a_refusal_for_being_too_many_says_when_to_come_again() {
    let policy = Policy {
        cors: None,
        tls_redirect: TlsRedirect::Off,
        auth: Vec::new(),
        sources: SourceRanges::default(),
        ..everything()
    };
    let (route, filters) = (route(policy), filters());
    assert_eq!(status(&route, &filters, &request()), None);
    let Next::Answer(reply) = route.check(&filters, &request(), &mut Passed::default()) else {
        panic!("it passed")
    };
    assert_eq!(reply.head.status, 429);
    let wait: u64 = reply.head.headers.get_str("retry-after").unwrap().parse().unwrap();
    assert!((3599..=3600).contains(&wait), "{wait}");
}

#[test]
fn rates_outlive_a_change_of_the_route() {
    let filters = filters();
    let policy = || Policy {
        tls_redirect: TlsRedirect::Off,
        auth: Vec::new(),
        sources: SourceRanges::default(),
        ..everything()
    };
    assert_eq!(status(&route(policy()), &filters, &request()), None);
    assert_eq!(status(&route(policy()), &filters, &request()), Some(429));
}

#[test]
fn requests_at_once_are_counted_as_long_as_they_last() {
    let policy = Policy { connections_max: Some(1), ..Policy::default() };
    let (route, filters) = (route(policy), filters());
    let mut first = Passed::default();
    assert!(matches!(route.check(&filters, &request(), &mut first), Next::Go));
    assert_eq!(status(&route, &filters, &request()), Some(429));
    drop(first);
    assert_eq!(status(&route, &filters, &request()), None);
}

#[test]
fn the_paths_of_one_ingress_share_its_limits() {
    let of = |ingress: &str, id: &str, policy: Policy| {
        let path = PathMatch::Prefix("/".into());
        let mut route = Route::forward(id, HostMatch::Any, path, BackendId::new("n/s:80"));
        route.age.name = ingress.into();
        route.policy = Arc::new(policy);
        RouteFilters::new(&route).0
    };
    let rate = |burst| Policy {
        rates: vec![RateLimit {
            requests: 1,
            per: Duration::from_hours(1),
            burst,
            except: Vec::new(),
        }],
        ..Policy::default()
    };
    let filters = filters();
    let paths = [of("n/i", "n/i/0/0", rate(1)), of("n/i", "n/i/0/1@alias", rate(1))];
    assert_eq!(status(&paths[0], &filters, &request()), None);
    assert_eq!(status(&paths[1], &filters, &request()), None, "the second of two");
    for path in &paths {
        assert_eq!(status(path, &filters, &request()), Some(429));
    }
    assert_eq!(status(&of("n/other", "n/other/0/0", rate(1)), &filters, &request()), None);

    let one = || Policy { connections_max: Some(1), ..Policy::default() };
    let mut held = Passed::default();
    let first = of("n/few", "n/few/0/0", one());
    assert!(matches!(first.check(&filters, &request(), &mut held), Next::Go));
    assert_eq!(status(&of("n/few", "n/few/1/0", one()), &filters, &request()), Some(429));
    assert_eq!(status(&of("n/many", "n/many/0/0", one()), &filters, &request()), None);
}

#[test]
fn who_is_excepted_may_have_as_many_at_once_as_it_likes() {
    let policy = Policy {
        connections_max: Some(1),
        connections_except: vec!["192.0.2.0/24".parse().unwrap()],
        ..Policy::default()
    };
    let (route, filters) = (route(policy), filters());
    let mut held = [Passed::default(), Passed::default(), Passed::default()];
    for passed in &mut held[..2] {
        assert!(matches!(route.check(&filters, &request(), passed), Next::Go));
    }
    let mut other = request();
    other.client.address = "198.51.100.1".parse().unwrap();
    assert!(matches!(route.check(&filters, &other, &mut held[2]), Next::Go));
    assert_eq!(status(&route, &filters, &other), Some(429));
}

#[test]
fn what_tells_where_a_message_ends_is_not_edited() {
    let set = |name: &str| HeaderEdit::Set(name.into(), "0".into());
    let names = ["Content-Length", "transfer-encoding", "Host", "Connection", "TE", "Upgrade"];
    let mut edits: Vec<_> = names.iter().map(|name| set(name)).collect();
    edits.extend(names.iter().map(|name| HeaderEdit::Remove((*name).into())));
    edits.extend([HeaderEdit::Add("Content-Length".into(), "7".into()), set("X-Own")]);
    let mut headers = Headers::new();
    headers.push("Content-Length", "5");
    edit(&edits, &mut headers);
    let all: Vec<_> = headers.iter().map(|field| (field.name, field.value)).collect();
    assert_eq!(all, [("Content-Length", &b"5"[..]), ("X-Own", b"0")]);
}

#[test]
fn a_client_does_not_say_what_certificate_it_has() {
    let with_all = |trusted| {
        let mut head = request();
        head.client.trusted = trusted;
        for name in client_cert::FIELDS {
            assert!(head.headers.push(name.to_ascii_uppercase(), "SUCCESS"));
        }
        route(Policy::default()).edit_request(&Passed::default(), &mut head);
        head.headers.len()
    };
    assert_eq!(with_all(false), 0, "there is no client_tls on the route");
    // A proxy that we trust may have asked for it.
    assert_eq!(with_all(true), client_cert::FIELDS.len());
}

#[test]
fn a_connection_for_another_certificate_is_misdirected() {
    let store = Arc::new(CertificateStore::new().unwrap());
    let (chain, key) = crate::tls::certificate::tests::pem_for(&["shop.org", "www.shop.org"]);
    let certificate = crate::table::Certificate {
        hosts: vec!["shop.org".into(), "www.shop.org".into()],
        chain_pem: chain.into_bytes().into(),
        key_pem: key.into_bytes().into(),
    };
    let certificates = [("n/s".into(), Some(certificate))].into();
    store.apply(crate::tls::store::CertificatesChange {
        certificates: &certificates,
        default: None,
    });
    let filters = Filters::new(Some(store), 443, true);
    let route = route(Policy::default());
    let by = |name: Option<&str>| {
        let mut head = request();
        head.scheme = Scheme::Https;
        let server_name = name.map(Arc::from);
        head.client.tls = Some(Arc::new(TlsInfo { server_name, ..TlsInfo::default() }));
        status(&route, &filters, &head)
    };
    assert_eq!(by(Some("shop.org")), None);
    assert_eq!(by(Some("www.shop.org")), None, "one certificate for both");
    assert_eq!(by(Some("other.org")), Some(421));
    assert_eq!(by(None), None);
}

#[tokio::test]
async fn settings_that_cannot_be_used_let_nobody_in() {
    let policy = Policy { auth: vec![Auth::Deny("no such Secret".into())], ..Policy::default() };
    let (route, filters) = (route(policy), filters());
    let mut passed = Passed::default();
    assert!(matches!(route.check(&filters, &request(), &mut passed), Next::Authorise));
    let reply = route.authorise(&filters, &request(), &mut passed).await.unwrap();
    assert_eq!(reply.head.status, 403);
}

#[test]
fn heads_are_edited_in_order_and_grants_replace_what_the_client_said() {
    let edits = HeaderEdits {
        request: vec![
            HeaderEdit::Set("x-a".into(), "1".into()),
            HeaderEdit::Add("x-a".into(), "2".into()),
            HeaderEdit::Remove("x-b".into()),
        ],
        response: vec![HeaderEdit::Set("x-c".into(), "3".into())],
    };
    let route = route(Policy { headers: edits, ..Policy::default() });
    let mut granted = Granted::default();
    granted.request.push("X-User", "anna");
    granted.cookies.push(b"s=1".to_vec());
    let passed = Passed { granted: Some(granted), ..Passed::default() };
    let mut head = request();
    for (name, value) in [("X-A", "0"), ("X-B", "0"), ("x-user", "root")] {
        head.headers.push(name, value);
    }
    route.edit_request(&passed, &mut head);
    let values: Vec<_> = head.headers.get_all("x-a").collect();
    assert_eq!(values, [b"1", b"2"]);
    assert!(head.headers.get("x-b").is_none());
    let users: Vec<_> = head.headers.get_all("x-user").collect();
    assert_eq!(users, [b"anna"]);
    let mut response = ResponseHead::default();
    route.edit_response(&passed, &head, &mut response);
    assert_eq!(response.headers.get_str("x-c"), Some("3"));
    assert_eq!(response.headers.get_str("set-cookie"), Some("s=1"));
}

#[test]
fn what_an_authenticating_server_does_not_say_the_client_does_not_say_either() {
    let forward = crate::table::ForwardAuth {
        url: "http://auth.svc/".into(),
        method: None,
        signin: None,
        signin_redirect_param: "".into(),
        response_headers: vec!["X-User".into(), "X-Groups".into()],
        set_headers: Vec::new(),
        request_redirect: None,
        always_set_cookie: false,
        cache: Duration::ZERO,
        cache_key: None,
        timeout: Duration::ZERO,
    };
    let route = route(Policy { auth: vec![Auth::Forward(forward)], ..Policy::default() });
    let mut granted = Granted::default();
    granted.request.push("x-groups", "staff");
    let passed = Passed { granted: Some(granted), ..Passed::default() };
    let mut head = request();
    for (name, value) in [("X-User", "admin"), ("X-Groups", "admins"), ("X-Other", "1")] {
        head.headers.push(name, value);
    }
    route.edit_request(&passed, &mut head);
    assert_eq!(head.headers.get("x-user"), None);
    assert_eq!(head.headers.get_all("x-groups").collect::<Vec<_>>(), [b"staff"]);
    assert_eq!(head.headers.get_str("x-other"), Some("1"));
}
