//! An agent that keeps policies, and calls of the plugin, killed at any moment: what is tried again comes right, no policy has a gap, and
//! nothing is left.

use std::time::Duration;

use crate::cni::{PluginCall, pending};
use crate::net::{Chance, PATIENCE, SILENCE, Wire, ask_from, assert_same, serve_at};
use crate::stage::{Stage, eventually};

/// Nobody comes in to `app: db`.
const DENY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: default}\n\
    spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}\n";

/// What instances leave, if they leave anything; what policies say of those that have gone, the agent takes out later.
const LEFT: &str = "ip -o link | sed 's/^[0-9]*: //; s/@.*//; s/:.*//' | sort; ip route | sed 's/ linkdown//; s/ *$//' | sort; \
    ip -6 route | grep -v fe80 | sed 's/ linkdown//' | sort; ip neigh show nud permanent | sort; ip -6 neigh show nud permanent | sort; \
    bridge fdb show | grep -v '33:33:\\|01:00:5e:' | sort; ls /run/netns; tc qdisc show | grep 'tbf\\|ingress'; \
    for of in ip ip6 bridge; do nft list table $of telaio-pods; done; \
    for of in ip ip6; do nft list set $of telaio-policy unjudged; nft list set $of telaio-policy arrived; done; \
    find /var/lib/telaio/pods -type f | grep -v 'lock$\\|/last-' | sort; true";

struct Killing {
    stage: Stage,
    chance: Chance,
    before: String,
}

impl Killing {
    /// An agent that keeps a policy, and an instance that stays.
    fn start(seed: u64) -> Self {
        let mut stage = Stage::new();
        stage.write("web", &pending("web", "web"));
        stage.write("db", &pending("db", "db"));
        stage.write("policy", DENY);
        let manifests = stage.manifests();
        stage.a.launch(&manifests);
        stage.a.wait("its health", |status| status["healthy"] == true);
        stage.a.node.machine.sh("ip netns add web; ip netns add db");
        let mut this = Self { stage, chance: Chance(seed), before: String::new() };
        for (command, id) in [("ADD", "web"), ("ADD", "db"), ("DEL", "db")] {
            this.call(command, id).make_on(&this.stage.a).unwrap();
        }
        let is_told = || !this.left().contains("elements = { 10.77.1.2 }");
        eventually("web is known", is_told, || this.left());
        this.before = this.left();
        this
    }

    fn call(&self, command: &'static str, id: &str) -> PluginCall {
        let call = PluginCall::new(&self.stage.a, command, id);
        if id != "db" {
            return call;
        }
        let port = |protocol: &str| serde_json::json!({"hostPort": 8081, "containerPort": 8080, "protocol": protocol});
        call.with(serde_json::json!({
            "portMappings": [port("tcp"), port("udp")],
            "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000},
        }))
    }

    fn left(&self) -> String {
        self.stage.a.node.machine.sh(LEFT)
    }

    fn is_told_of_all(&self) -> bool {
        !self.left().contains("elements = { 10.77.1")
    }

    /// What was begun is done, or done again: then it is as it should be, and nothing of it is left when it goes.
    fn finish(&mut self, when: &str, is_half_gone: bool) {
        let machine = &self.stage.a.node.machine;
        if self.chance.below(3) > 0 {
            // That it had been done before the kill is all that may be in the way, or that only half of it is gone.
            let added = self.call("ADD", "db").make_on(&self.stage.a);
            if let Err(error) = &added {
                assert_eq!(error["code"], 104, "{when}: {error}");
            }
            let is_whole = added.is_ok() || !is_half_gone;
            let ip =
                machine.sh("ip -n db -4 -o address show dev eth0 | awk '{print $4}' | cut -d/ -f1");
            let _server = serve_at(machine, Some("db"), "0.0.0.0", 8080, Wire::Tcp);
            for (ip, port) in [(ip.trim(), 8080), ("10.77.1.1", 8081)] {
                let answer = ask_from(machine, Some("web"), ip, port, Wire::Tcp, SILENCE);
                assert!(answer.is_err(), "{when}: the policy holds for {ip}");
            }
            if is_whole {
                let own = ask_from(machine, None, ip.trim(), 8080, Wire::Tcp, PATIENCE);
                assert!(own.is_ok(), "{when}: the node's own probes pass: {own:?}");
            }
        }
        self.call("DEL", "db").make_on(&self.stage.a).unwrap();
        assert_same(&self.left(), &self.before, when);
    }
}

#[test]
fn calls_that_are_killed_while_policies_are_kept_leave_nothing() {
    const KILLS: usize = 24;
    let mut test = Killing::start(19);
    let mut landed = 0;
    let mut longest = 12_000;
    for round in 0.. {
        assert!(round < KILLS * 4, "of {round} calls only {landed} were killed at work");
        let is_add = test.chance.below(3) > 0;
        if !is_add {
            test.call("ADD", "db").make_on(&test.stage.a).unwrap();
        }
        let call = test.call(if is_add { "ADD" } else { "DEL" }, "db");
        let after = Duration::from_micros(test.chance.below(longest));
        if test.stage.a.node.machine.run(move || call.kill(after)) {
            landed += 1;
        } else {
            longest = (longest * 9 / 10).max(1000);
        }
        test.finish(&format!("round {round}, ADD {is_add}, {after:?}"), !is_add);
        if landed == KILLS {
            break;
        }
    }
}

#[test]
fn an_agent_that_is_killed_with_instances_and_policies_leaves_no_gap_and_nothing() {
    const ROUNDS: u64 = 8;
    let mut test = Killing::start(23);
    let manifests = test.stage.manifests();
    for round in 0..ROUNDS {
        let call = test.call("ADD", "db");
        let added = test.stage.a.node.machine.spawn(move || call.make());
        // While it judges, and the next one while it starts.
        for within_ms in [40, 400] {
            std::thread::sleep(Duration::from_millis(test.chance.below(within_ms)));
            test.stage.a.kill();
            test.stage.a.launch(&manifests);
        }
        if let Err(error) = added.join().unwrap() {
            assert_eq!(error["code"], 11, "round {round}: {error}");
        }
        test.finish(&format!("round {round}"), false);
    }
    test.stage.a.wait("its health", |status| status["healthy"] == true);
    eventually("nobody waits", || test.is_told_of_all(), || test.left());
    test.stage.a.wait("the instance that stays", |status| status["pods"]["instance_count"] == 1);
    test.call("DEL", "web").make_on(&test.stage.a).unwrap();
    test.stage.a.stop();
    test.stage.a.cleanup();
    let left = test.stage.a.node.machine.sh("nft list ruleset; ip -o link | grep 'tl[bvi]'; true");
    assert_eq!(left, "");
}
