//! Installing the CNI plugin and its configuration.
//!
//! Both are put in place by renaming: whoever looks sees the old file or the new one, whole. A configuration of another plugin
//! is left alone, and ours is not installed beside it, because container runtimes take the first that they find; with
//! `--take-over-cni` it is moved aside once ours is there, and `telaio cleanup` moves it back before ours goes: at no time is
//! there none. Where the plugin was put stands in the state directory, for it may be installed without a configuration.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::json;
use telaio_pod_network::{Network, Subnet};

/// The plugin's file name, also beside our own binary.
const PLUGIN: &str = "telaio-cni";
/// Our configuration: early in the alphabet, for the first one counts.
const CONFIGURATION: &str = "05-telaio.conflist";
/// What a configuration that was moved aside ends with.
const ASIDE: &str = ".before-telaio";
/// Below the state directory: where the plugin was put.
const INSTALLED: &str = "cni-plugin-installed";
/// The endings of configurations that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];
/// The version of CNI that the configuration speaks to runtimes that know one only.
const CNI_VERSION: &str = "1.0.0";
/// Those among which other runtimes choose the latest that they know: from 1.1.0 on they have what is left removed, and ask whether
/// there are addresses.
const CNI_VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];

/// Where the plugin and its configuration go.
#[derive(Debug, Clone, Default)]
pub(crate) struct CniSettings {
    /// The directory of plugins; `None` installs nothing.
    pub(crate) bin_dir: Option<PathBuf>,
    /// The directory of configurations; `None` installs none.
    pub(crate) conf_dir: Option<PathBuf>,
    /// The plugin to install; the one beside our own binary if not said.
    pub(crate) plugin: Option<PathBuf>,
    /// Configurations of other plugins make way.
    pub(crate) take_over: bool,
}

/// Puts plugin and configuration in place.
#[derive(Debug)]
pub(super) struct Installer {
    settings: CniSettings,
    state_dir: PathBuf,
    /// The configuration in our way that was warned of.
    told: Option<PathBuf>,
    /// The plugin and its source when they were last found to be the same.
    same: Option<[Stamp; 2]>,
}

/// A file as it was: one that has been written, or replaced, has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let it = fs::metadata(path)?;
        Ok(Self {
            place: (it.dev(), it.ino()),
            len: it.len(),
            modified: (it.mtime(), it.mtime_nsec()),
            changed: (it.ctime(), it.ctime_nsec()),
        })
    }
}

impl Installer {
    pub(super) fn new(settings: CniSettings, state_dir: &Path) -> Self {
        Self { settings, state_dir: state_dir.to_owned(), told: None, same: None }
    }

    /// Makes both as they should be; how it stands. Costs little where they are so. Another plugin's configuration is no
    /// fault of this node: it is told, and everything else goes on.
    pub(super) fn install(&mut self, network: &Network) -> Result<String, String> {
        let settings = &self.settings;
        if let Some(dir) = &settings.bin_dir {
            let plugin = settings.plugin.as_deref();
            install_plugin(dir, plugin, &self.state_dir, &mut self.same)?;
        }
        let Some(dir) = &settings.conf_dir else {
            return Ok("no configuration is installed".to_owned());
        };
        fs::create_dir_all(dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let others = others(dir)?;
        if !settings.take_over
            && let Some(other) = others.first()
        {
            let state = format!(
                "not installed: {} is another plugin's; remove it, or start with --take-over-cni to move it aside",
                other.display()
            );
            if self.told.as_ref() != Some(other) {
                tracing::warn!("the CNI configuration is {state}");
                self.told = Some(other.clone());
            }
            return Ok(state);
        }
        self.told = None;
        let text = configuration(network, &self.state_dir);
        let path = dir.join(CONFIGURATION);
        if !fs::read_to_string(&path).is_ok_and(|there| there == text) {
            replace(&path, 0o644, |mut file| file.write_all(text.as_bytes()))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            tracing::info!(file = %path.display(), "installed the CNI configuration");
        }
        // Ours first: a node is never without one.
        move_aside(others)?;
        Ok(format!("installed as {}", path.display()))
    }
}

/// The configuration by which a container runtime puts instances on this node's network.
///
/// It says the same of the network as its record does, or the plugin would change the one to fit the other.
fn configuration(network: &Network, state_dir: &Path) -> String {
    let range = |subnet: &Subnet| json!({"subnet": subnet.cidr, "gateway": subnet.gateway});
    // An instance gets an address out of each set: one of each family, out of the first range that has one left.
    let (mut sets, mut families) = (Vec::<Vec<_>>::new(), Vec::new());
    for subnet in &network.subnets {
        let is_ipv4 = subnet.cidr.is_ipv4();
        if let Some(at) = families.iter().position(|family| *family == is_ipv4) {
            sets[at].push(range(subnet));
        } else {
            families.push(is_ipv4);
            sets.push(vec![range(subnet)]);
        }
    }
    let except = network.masquerade.iter().flat_map(|masquerade| &masquerade.except);
    let document = json!({
        "cniVersion": CNI_VERSION,
        "cniVersions": CNI_VERSIONS,
        "name": network.name,
        "plugins": [{
            "type": PLUGIN,
            "bridge": network.bridge,
            "isGateway": true,
            "isDefaultGateway": true,
            "ipMasq": network.masquerade.is_some(),
            "masqExcept": except.collect::<Vec<_>>(),
            "mtu": network.mtu,
            "stateDir": state_dir.display().to_string(),
            "ipam": {"type": "host-local", "ranges": sets},
            "capabilities": {"portMappings": true, "bandwidth": true, "ips": true, "mac": true},
        }],
    });
    format!("{document:#}\n")
}

/// `same` is what both were when they last were found to be the same, so that nothing is read while they stay so.
fn install_plugin(
    dir: &Path,
    plugin: Option<&Path>,
    state_dir: &Path,
    same: &mut Option<[Stamp; 2]>,
) -> Result<(), String> {
    let from = match plugin {
        Some(path) => path.to_owned(),
        // We are a plugin ourselves, only a large one.
        None => beside_us().or_else(|| std::env::current_exe().ok()).ok_or_else(|| {
            format!("there is no {PLUGIN} beside this binary; name it with --cni-plugin")
        })?,
    };
    let path = dir.join(PLUGIN);
    // Before they are read: what is written meanwhile is seen the next time.
    let stamps = || Some([Stamp::of(&from).ok()?, Stamp::of(&path).ok()?]);
    let now = stamps();
    if now.is_some() && *same == now {
        return Ok(());
    }
    *same = None;
    let bytes =
        fs::read(&from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let is_same_length = now.is_some_and(|[_, there]| there.len == bytes.len() as u64);
    // One that its owner may not run is as good as none.
    let can_run = || fs::metadata(&path).is_ok_and(|there| there.permissions().mode() & 0o100 != 0);
    if is_same_length && can_run() && fs::read(&path).is_ok_and(|there| there == bytes) {
        *same = now;
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(failed)?;
    fs::create_dir_all(state_dir)
        .and_then(|()| fs::write(state_dir.join(INSTALLED), path.as_os_str().as_encoded_bytes()))
        .map_err(|error| format!("cannot write to {}: {error}", state_dir.display()))?;
    replace(&path, 0o755, |mut file| file.write_all(&bytes)).map_err(failed)?;
    tracing::info!(file = %path.display(), "installed the CNI plugin");
    Ok(())
}

fn beside_us() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.join(PLUGIN);
    path.is_file().then_some(path)
}

/// Writes a file beside its place and moves it there.
fn replace(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    // Its name has an ending that no runtime reads.
    let file = tempfile::Builder::new().prefix(".telaio-").suffix(".new").tempfile_in(dir)?;
    write(file.as_file())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Moves other plugins' configurations aside.
fn move_aside(others: Vec<PathBuf>) -> Result<(), String> {
    for other in others {
        let aside = PathBuf::from(format!("{}{ASIDE}", other.display()));
        fs::rename(&other, &aside)
            .map_err(|error| format!("cannot move {} aside: {error}", other.display()))?;
        tracing::info!(from = %other.display(), to = %aside.display(), "moved another plugin's configuration aside");
    }
    Ok(())
}

fn others(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let is_other = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending))
            && path.file_name().is_some_and(|name| name != CONFIGURATION)
    };
    let mut found: Vec<PathBuf> = listed(dir)?.into_iter().filter(is_other).collect();
    found.sort();
    Ok(found)
}

fn listed(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| format!("cannot read {}: {error}", dir.display()))?,
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Removes the configuration and the plugin, and moves back what was moved aside; tells what that was.
pub(super) fn remove(settings: &CniSettings, state_dir: &Path) -> Result<Vec<String>, String> {
    let mut removed = Vec::new();
    let mut is_ours = false;
    let mut is_anothers = false;
    if let Some(dir) = &settings.conf_dir {
        let path = dir.join(CONFIGURATION);
        // Another agent's configuration, with another state directory, is not ours to remove.
        let ours = format!("{:?}", state_dir.display().to_string());
        if let Ok(text) = fs::read_to_string(&path) {
            is_ours = text.contains(&ours);
            is_anothers = !is_ours;
        }
        if is_ours {
            move_back(dir, &mut removed)?;
            remove_file(&path, &mut removed)?;
        }
    }
    let note = state_dir.join(INSTALLED);
    let noted =
        fs::read(&note).ok().and_then(|path| String::from_utf8(path).ok()).map(PathBuf::from);
    let beside = settings.bin_dir.as_ref().map(|dir| dir.join(PLUGIN)).filter(|_| is_ours);
    if !is_anothers {
        for path in noted.iter().chain(beside.as_ref().filter(|path| Some(*path) != noted.as_ref()))
        {
            remove_file(path, &mut removed)?;
        }
    }
    if noted.is_some() {
        fs::remove_file(&note)
            .map_err(|error| format!("cannot remove {}: {error}", note.display()))?;
    }
    Ok(removed)
}

/// Others' configurations are where they were, unless somebody has put new ones there.
fn move_back(dir: &Path, removed: &mut Vec<String>) -> Result<(), String> {
    for aside in listed(dir)? {
        let Some(place) = aside.to_str().and_then(|name| name.strip_suffix(ASIDE)) else {
            continue;
        };
        if Path::new(place).exists() {
            removed.push(format!(
                "our hold on {place}: there is a new one; the old one stays {}",
                aside.display()
            ));
            continue;
        }
        fs::rename(&aside, place).map_err(|error| format!("cannot move {place} back: {error}"))?;
        removed.push(format!("our hold on {place}: it is back"));
    }
    Ok(())
}

fn remove_file(path: &Path, removed: &mut Vec<String>) -> Result<(), String> {
    match fs::remove_file(path) {
        Ok(()) => removed.push(path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("cannot remove {}: {error}", path.display())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use telaio_pod_network::{Masquerade, Mode};

    use super::*;

    struct Ground {
        dir: tempfile::TempDir,
        installer: Installer,
    }

    impl Ground {
        fn new(take_over: bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::write(at("the-plugin"), "a program").unwrap();
            fs::create_dir(at("net.d")).unwrap();
            let settings = CniSettings {
                bin_dir: Some(at("bin")),
                conf_dir: Some(at("net.d")),
                plugin: Some(at("the-plugin")),
                take_over,
            };
            let installer = Installer::new(settings, &at("state"));
            Self { dir, installer }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn names(&self, dir: &str) -> Vec<String> {
            let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            let mut names: Vec<_> = listed(&self.at(dir)).unwrap().into_iter().map(name).collect();
            names.sort();
            names
        }
    }

    fn network() -> Network {
        let (cidr, gateway) = ("10.244.1.0/24".parse().unwrap(), "10.244.1.1".parse().unwrap());
        Network {
            name: "node-a".to_owned(),
            group: 1,
            bridge: "tlb-node-a".to_owned(),
            bridge_mac: String::new(),
            subnets: vec![Subnet { cidr, gateway: Some(gateway) }],
            mode: Mode::Routed,
            mtu: Some(1450),
            masquerade: Some(Masquerade::default()),
            vlan: None,
            hairpin: false,
            promiscuous: false,
            is_adopted: false,
            is_made: false,
            reaches: vec![],
            joined: vec![],
        }
    }

    #[test]
    fn plugin_and_configuration_are_installed_whole_and_removed() {
        let mut ground = Ground::new(false);
        for _ in 0..2 {
            ground.installer.install(&network()).unwrap();
        }
        assert_eq!(ground.names("net.d"), [CONFIGURATION]);
        assert_eq!(ground.names("bin"), [PLUGIN]);
        let mode = fs::metadata(ground.at("bin/telaio-cni")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let text = fs::read_to_string(ground.at("net.d/05-telaio.conflist")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["name"], "node-a");
        // Who knows one version, and who chooses.
        assert_eq!(document["cniVersion"], "1.0.0");
        assert_eq!(document["cniVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
        assert_eq!(document["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
        let removed = remove(&ground.installer.settings, &ground.at("state")).unwrap();
        assert_eq!(removed.len(), 2, "{removed:?}");
        assert!(ground.names("net.d").is_empty() && ground.names("bin").is_empty());
        assert!(remove(&ground.installer.settings, &ground.at("state")).unwrap().is_empty());
    }

    /// How much this thread has read so far.
    fn bytes_read() -> u64 {
        let text = fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_plugin_that_is_installed_is_not_read_again_until_somebody_changes_it() {
        const LEN: usize = 1 << 20;
        let mut ground = Ground::new(false);
        fs::write(ground.at("the-plugin"), vec![1; LEN]).unwrap();
        ground.installer.install(&network()).unwrap();
        ground.installer.install(&network()).unwrap();
        let before = bytes_read();
        ground.installer.install(&network()).unwrap();
        assert!(bytes_read() - before < LEN as u64, "it was read: {}", bytes_read() - before);
        // A new release of the same length; then somebody who spoils what is installed.
        fs::write(ground.at("the-plugin"), vec![2; LEN]).unwrap();
        ground.installer.install(&network()).unwrap();
        assert_eq!(fs::read(ground.at("bin/telaio-cni")).unwrap(), vec![2; LEN]);
        fs::write(ground.at("bin/telaio-cni"), vec![3; LEN]).unwrap();
        ground.installer.install(&network()).unwrap();
        assert_eq!(fs::read(ground.at("bin/telaio-cni")).unwrap(), vec![2; LEN]);
    }

    #[test]
    fn ranges_of_one_family_are_one_set() {
        let subnet = |cidr: &str| Subnet { cidr: cidr.parse().unwrap(), gateway: None };
        let cidrs = ["10.244.1.0/28", "10.244.7.0/24", "fd00:1::/64"];
        let network = Network { subnets: cidrs.map(subnet).to_vec(), ..network() };
        let text = configuration(&network, Path::new("/state"));
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let sets = document["plugins"][0]["ipam"]["ranges"].as_array().unwrap();
        let sets: Vec<Vec<&str>> = sets
            .iter()
            .map(|set| {
                let ranges = set.as_array().unwrap();
                ranges.iter().map(|range| range["subnet"].as_str().unwrap()).collect()
            })
            .collect();
        assert_eq!(sets, [vec!["10.244.1.0/28", "10.244.7.0/24"], vec!["fd00:1::/64"]]);
    }

    #[test]
    fn another_plugins_configuration_stays_unless_it_is_to_be_taken_over() {
        let mut ground = Ground::new(false);
        fs::write(ground.at("net.d/10-other.conflist"), "{}").unwrap();
        let state = ground.installer.install(&network()).unwrap();
        assert!(
            state.contains("10-other.conflist") && state.contains("--take-over-cni"),
            "{state}"
        );
        assert_eq!(ground.names("net.d"), ["10-other.conflist"]);
        fs::remove_file(ground.at("net.d/10-other.conflist")).unwrap();
        let state = ground.installer.install(&network()).unwrap();
        assert!(state.starts_with("installed as "), "{state}");

        let mut ground = Ground::new(true);
        fs::write(ground.at("net.d/10-other.conflist"), "{}").unwrap();
        fs::write(ground.at("net.d/README"), "not read by anybody").unwrap();
        ground.installer.install(&network()).unwrap();
        let names = ground.names("net.d");
        assert_eq!(names, [CONFIGURATION, "10-other.conflist.before-telaio", "README"]);
        remove(&ground.installer.settings, &ground.at("state")).unwrap();
        assert_eq!(ground.names("net.d"), ["10-other.conflist", "README"]);
    }

    #[test]
    fn a_configuration_of_another_agent_is_not_removed() {
        let mut ground = Ground::new(false);
        ground.installer.install(&network()).unwrap();
        assert!(remove(&ground.installer.settings, &ground.at("other")).unwrap().is_empty());
        assert_eq!(ground.names("net.d"), [CONFIGURATION]);
    }

    #[test]
    fn a_plugin_that_is_not_there_is_named() {
        let mut ground = Ground::new(false);
        ground.installer.settings.plugin = Some(ground.at("nowhere"));
        assert!(ground.installer.install(&network()).unwrap_err().contains("nowhere"));
        assert!(ground.names("net.d").is_empty(), "no configuration without a plugin");
    }

    #[test]
    fn at_no_time_is_a_node_without_a_configuration() {
        let mut ground = Ground::new(true);
        fs::write(ground.at("net.d/10-other.conflist"), "{}").unwrap();
        // What is in the way of ours keeps the other where it is.
        fs::create_dir(ground.at("net.d/05-telaio.conflist")).unwrap();
        ground.installer.install(&network()).unwrap_err();
        assert!(ground.at("net.d/10-other.conflist").exists());
        fs::remove_dir(ground.at("net.d/05-telaio.conflist")).unwrap();
        ground.installer.install(&network()).unwrap();
        // As a kill leaves it that comes between: the next run goes on.
        fs::write(ground.at("net.d/11-another.conflist"), "{}").unwrap();
        ground.installer.install(&network()).unwrap();
        let aside = ["10-other.conflist.before-telaio", "11-another.conflist.before-telaio"];
        assert_eq!(ground.names("net.d"), [&[CONFIGURATION], &aside[..]].concat());
        // One that somebody has put there since is not overwritten.
        fs::write(ground.at("net.d/10-other.conflist"), "new").unwrap();
        remove(&ground.installer.settings, &ground.at("state")).unwrap();
        assert_eq!(fs::read_to_string(ground.at("net.d/10-other.conflist")).unwrap(), "new");
        assert!(ground.at("net.d/11-another.conflist").exists());
    }

    #[test]
    fn a_plugin_that_was_installed_without_a_configuration_is_removed() {
        let mut ground = Ground::new(false);
        fs::write(ground.at("net.d/10-other.conflist"), "{}").unwrap();
        ground.installer.install(&network()).unwrap();
        assert_eq!(ground.names("bin"), [PLUGIN]);
        let removed = remove(&ground.installer.settings, &ground.at("state")).unwrap();
        assert_eq!(removed.len(), 1, "{removed:?}");
        assert!(ground.names("bin").is_empty() && ground.names("state").is_empty());
        assert_eq!(ground.names("net.d"), ["10-other.conflist"]);
    }
}
