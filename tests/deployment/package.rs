//! deploy/debian: what `scripts/release deb` packs is there, and nothing of deploy/systemd is forgotten.

use super::{deploy, read, root};
use std::collections::BTreeSet;

/// The first word of each line.
fn listed(name: &str) -> BTreeSet<String> {
    let text = read(&deploy("debian").join(name));
    text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// Units for the system's manager; a user's are elsewhere.
fn units() -> BTreeSet<String> {
    let names = deploy("systemd").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.ends_with(".service") || name.ends_with(".socket")).collect()
}

#[test]
fn what_is_packed_is_there() {
    let release = read(&root().join("scripts/release"));
    let files = ["postern.install", "postern.docs", "postern.manpages"];
    let sources: BTreeSet<String> = files.into_iter().flat_map(listed).collect();
    assert!(sources.len() > 15, "{sources:?}");
    for source in sources {
        let copied = source
            .strip_prefix("systemd/")
            .map_or_else(|| root().join(&source), |unit| deploy("systemd").join(unit));
        let made = source.trim_end_matches("/*.1"); // a folder of man pages
        assert!(
            copied.exists() || release.contains(&format!("$stage/{made}\"")),
            "{source} is neither here nor made"
        );
    }
}

#[test]
fn every_unit_is_packed_and_every_unit_of_the_system_has_its_maintainer_scripts() {
    let installed = listed("postern.install");
    let rules = read(&deploy("debian/rules"));
    let units = units();
    assert!(units.len() > 4, "{units:?}");
    for unit in units {
        assert!(installed.contains(&format!("systemd/{unit}")), "{unit} is not packed");
        let is_for_users = unit == "postern-client.service";
        assert_eq!(
            rules.split_whitespace().any(|word| word == unit),
            !is_for_users,
            "{unit} in deploy/debian/rules"
        );
    }
    assert!(deploy("systemd/postern.sysusers.conf").exists());
}

/// A daemon that is enabled before its file was edited ends with a sentence, and is not started again and again.
#[test]
fn the_configurations_of_the_package_are_those_that_the_units_name() {
    for daemon in ["gateway", "issuer"] {
        let unit = read(&deploy(&format!("systemd/postern-{daemon}.service")));
        assert!(unit.contains(&format!("--config /etc/postern/{daemon}.toml\n")), "{daemon}");
        let line = format!("deploy/examples/one-server/{daemon}.toml etc/postern\n");
        assert!(read(&deploy("debian/postern.install")).contains(&line), "{daemon}");
    }
}
