use std::collections::BTreeSet;
use std::sync::Mutex;

use super::*;

/// Writes down what it is asked to do.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    fail_at: Option<&'static str>,
}

impl Log {
    fn line(&mut self, text: String) -> Result<(), String> {
        if self.fail_at == Some(text.as_str()) {
            return Err(text);
        }
        self.lines.push(text);
        Ok(())
    }
}

impl GroupHandler<&str, u32> for Log {
    type Error = String;
    fn create_service(&mut self, service: &&str) -> Result<(), String> {
        self.line(format!("+{service}"))
    }
    fn update_service(&mut self, old: &&str, new: &&str) -> Result<(), String> {
        self.line(format!("{old}->{new}"))
    }
    fn delete_service(&mut self, service: &&str) -> Result<(), String> {
        self.line(format!("-{service}"))
    }
    fn create_endpoint(&mut self, endpoint: &u32, service: &&str) -> Result<(), String> {
        self.line(format!("+{service}/{endpoint}"))
    }
    fn update_endpoint(&mut self, old: &u32, new: &u32, service: &&str) -> Result<(), String> {
        self.line(format!("{service}/{old}->{new}"))
    }
    fn delete_endpoint(&mut self, endpoint: &u32, service: &&str) -> Result<(), String> {
        self.line(format!("-{service}/{endpoint}"))
    }
}

impl Handlers<u32> for Log {
    type Error = String;
    fn create(&mut self, resource: &u32) -> Result<(), String> {
        self.line(format!("+{resource}"))
    }
    fn update(&mut self, old: &u32, new: &u32) -> Result<(), String> {
        self.line(format!("{old}->{new}"))
    }
    fn delete(&mut self, resource: &u32) -> Result<(), String> {
        self.line(format!("-{resource}"))
    }
}

#[test]
fn a_patch_calls_the_handler_of_its_operation() {
    let mut log = Log::default();
    let patches =
        [Patch::NoOp(0), Patch::Create(1), Patch::Update { old: 2, new: 3 }, Patch::Delete(4)];
    for patch in &patches {
        patch.apply(&mut log).unwrap();
    }
    assert_eq!(log.lines, ["+1", "2->3", "-4"]);
    assert_eq!(
        patches.each_ref().map(Patch::op),
        [Operation::NoOp, Operation::Create, Operation::Update, Operation::Delete]
    );
    assert_eq!(patches.each_ref().map(|patch| *patch.resource()), [0, 1, 3, 4]);
    assert_eq!(patches.each_ref().map(Patch::previous), [Some(&0), None, Some(&2), Some(&4)]);
}

#[test]
fn a_service_comes_before_its_endpoints_and_goes_after_them() {
    let mut log = Log::default();
    let created = PatchGroup {
        service: Patch::Create("a"),
        endpoints: vec![Patch::Create(1), Patch::Delete(2)],
    };
    let deleted = PatchGroup { service: Patch::Delete("b"), endpoints: vec![Patch::Delete(1)] };
    created.apply(&mut log).unwrap();
    deleted.apply(&mut log).unwrap();
    assert_eq!(log.lines, ["+a", "-a/2", "+a/1", "-b/1", "-b"]);
}

#[test]
fn a_group_stops_at_its_first_error() {
    let mut log = Log { fail_at: Some("-b/1"), ..Log::default() };
    let group = PatchGroup { service: Patch::Delete("b"), endpoints: vec![Patch::Delete(1)] };
    assert_eq!(group.apply(&mut log), Err("-b/1".to_owned()));
    assert!(log.lines.is_empty());
}

#[test]
fn groups_are_made_of_what_changed_and_of_nothing_else() {
    let mut services: DiffStore<&str, &str> = DiffStore::new();
    let mut endpoints: DiffStore<(&str, u8), u32> = DiffStore::new();
    for name in ["changed", "gone", "quiet", "same"] {
        services.set(name, "v1");
        endpoints.set((name, 1), 1);
    }
    services.reset();
    endpoints.reset();

    services.set("changed", "v2");
    services.delete(&"gone");
    endpoints.delete(&("gone", 1));
    endpoints.set(("same", 2), 2);
    services.set("new", "v1");
    endpoints.set(("orphan", 1), 1);

    let groups = generate_patch_groups(&services, &endpoints, |(service, _)| service);
    assert_eq!(
        groups,
        [
            PatchGroup { service: Patch::Update { old: "v1", new: "v2" }, endpoints: vec![] },
            PatchGroup { service: Patch::Delete("v1"), endpoints: vec![Patch::Delete(1)] },
            PatchGroup { service: Patch::Create("v1"), endpoints: vec![] },
            PatchGroup { service: Patch::NoOp("v1"), endpoints: vec![Patch::Create(2)] },
        ]
    );
}

#[test]
fn parallel_application_goes_on_after_failures_and_returns_all_of_them() {
    let groups: Vec<u32> = (0..100).collect();
    for threads in [0, 1, 3, 200] {
        let seen = Mutex::new(BTreeSet::new());
        let failed = apply_parallel(&groups, threads, |group| {
            assert!(seen.lock().unwrap().insert(*group), "a group is applied once");
            if group % 30 == 7 { Err(*group) } else { Ok(()) }
        });
        assert_eq!(failed, [(7, 7), (37, 37), (67, 67), (97, 97)]);
        assert_eq!(seen.lock().unwrap().len(), groups.len());
    }
}

#[test]
fn nothing_to_apply_is_no_error() {
    assert!(apply_parallel(&[] as &[u8], 4, |_| Err(())).is_empty());
}

#[test]
#[should_panic(expected = "a fault in group 3")]
fn a_panic_while_applying_is_passed_on() {
    let groups: Vec<u32> = (0..8).collect();
    apply_parallel(&groups, 2, |group| -> Result<(), ()> {
        assert!(*group != 3, "a fault in group 3");
        Ok(())
    });
}
