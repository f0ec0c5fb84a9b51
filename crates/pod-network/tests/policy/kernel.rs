//! The kernel has what was compiled, before and after changes, and nft can list it.

use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use telaio_model::IpFamily;
use telaio_netlink::netns::Netns;
use telaio_pod_network::policy::{Kernel, World, cleanup, compile};
use telaio_reconcile::{PartReconciler, Target};

use crate::generate::{HERE, step};
use crate::properties::tell;

/// Runs `work` in a network namespace of its own.
pub(crate) fn within(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-policy-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

pub(crate) fn nft(args: &[&str]) -> String {
    let done = Command::new("nft").args(args).output().unwrap();
    assert!(done.status.success(), "nft {args:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn what_is_read_back_is_what_was_compiled_after_every_change() {
    within("read", || {
        let mut runner = TestRunner::deterministic();
        let mut world = World::new(HERE);
        let mut reconciler = PartReconciler::new(Kernel::open(&IpFamily::ALL).unwrap());
        for round in 0..150 {
            for _ in 0..=round % 3 {
                tell(&mut world, &step().new_tree(&mut runner).unwrap().current());
            }
            let parts = world.settle();
            reconciler.reconcile_part(&parts, &world).unwrap();
            let there = Kernel::open(&IpFamily::ALL).unwrap().observe().unwrap().items;
            assert_eq!(there, compile(&world, &IpFamily::ALL), "round {round}");
        }
        // Whoever starts anew finds that all is well.
        let mut anew = PartReconciler::new(Kernel::open(&IpFamily::ALL).unwrap());
        assert_eq!(anew.reconcile(&world).unwrap().changes(), 0);
        let listed = nft(&["list", "ruleset"]);
        assert!(listed.contains("table ip telaio-policy"), "{listed}");
        assert!(listed.contains("table ip6 telaio-policy"), "{listed}");
        let removed = cleanup().unwrap();
        assert_eq!(removed.len(), 2, "{removed:?}");
        assert_eq!(nft(&["list", "ruleset"]), "");
        assert_eq!(cleanup().unwrap(), Vec::<String>::new());
    });
}
