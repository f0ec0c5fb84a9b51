//! A network namespace for one test.

use std::process::Command;

use telaio_netlink::netns::Netns;

/// A namespace that is removed at the end, also of a test that fails.
#[derive(Debug)]
pub(crate) struct Place {
    netns: Netns,
}

impl Place {
    /// A new one with loopback up. The name is for people; it must differ between tests.
    pub(crate) fn new(name: &str) -> Self {
        let netns = Netns::create(&format!("telaio-{name}-{}", std::process::id())).unwrap();
        let place = Self { netns };
        place.shell("ip link set lo up");
        place
    }

    /// Runs `work` in it, on a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(work).unwrap()
    }

    /// What a command prints that must succeed.
    pub(crate) fn shell(&self, command: &str) -> String {
        let output = self.run(|| Command::new("sh").args(["-ec", command]).output().unwrap());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Netns::remove(self.netns.name());
    }
}
