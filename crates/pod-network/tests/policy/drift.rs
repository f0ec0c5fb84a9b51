//! Whatever others do to our tables is mended.

use std::sync::mpsc;
use std::time::Duration;

use telaio_model::IpFamily;
use telaio_pod_network::policy::{Keeper, Kernel, TABLE, Told};
use telaio_reconcile::{SyncKind, Target};

use crate::cases;
use crate::kernel::{nft, within};

/// How long a notice may take.
const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn what_others_break_is_told_and_mended() {
    within("drift", || {
        let mut keeper = Keeper::open("node-a", &IpFamily::ALL).unwrap();
        for (key, pod) in cases::pods().pods {
            keeper.world_mut().set_pod(&key, Some(pod.into()));
        }
        for (_, policies) in cases::all() {
            for policy in policies {
                let key = policy.meta.key.clone();
                keeper.world_mut().set_policy(&key, Some(policy.into()));
            }
        }
        let (sender, suspected) = mpsc::channel();
        keeper.watch(move |told| _ = sender.send(told));
        keeper.sync(SyncKind::Changes).unwrap();
        // Somebody may have come before it watched.
        assert_eq!(suspected.recv_timeout(PATIENCE), Ok(Told::Newcomer));
        let read = || Kernel::open(&IpFamily::ALL).unwrap().observe().unwrap().items;
        let wanted = read();
        for damage in [
            "flush chain ip telaio-policy ingress",
            "flush map ip telaio-policy peers",
            "add element ip6 telaio-policy own { fd00::1 . fd00::1 }",
            "add chain ip telaio-policy mine",
            "add rule ip telaio-policy policies counter",
            "delete table ip telaio-policy",
            "flush ruleset",
        ] {
            let words: Vec<&str> = damage.split(' ').collect();
            nft(&words);
            assert_ne!(read(), wanted, "{damage}");
            assert_eq!(suspected.recv_timeout(PATIENCE).expect("it is noticed"), Told::Drift);
            let report = keeper.sync(SyncKind::Drift).unwrap();
            assert!(report.drift_repairs > 0, "{damage}: {report:?}");
            assert_eq!(read(), wanted, "{damage}");
            while suspected.try_recv().is_ok() {}
        }
        let quiet = keeper.sync(SyncKind::Full).unwrap();
        assert_eq!(quiet.changes(), 0, "{TABLE} is as it should be");
    });
}
