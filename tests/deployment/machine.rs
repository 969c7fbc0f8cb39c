//! deploy/systemd and deploy/sysctl: a machine without containers.

use super::examples::all;
use super::{deploy, read, seconds};
use postern_daemon::descriptors::needed;
use postern_daemon::exit;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const UNITS: [&str; 3] = ["postern-gateway.service", "postern-issuer.service", "postern-client.service"];

/// The values of a key of a unit, in order.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = read(&deploy("systemd").join(unit));
    text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned)).collect()
}

fn value(unit: &str, key: &str) -> String {
    let mut values = values(unit, key);
    assert_eq!(values.len(), 1, "{unit}: {key} stands there once");
    values.remove(0)
}

#[test]
fn units_leave_time_to_drain_and_descriptors_for_tunnels() {
    for example in all().into_values() {
        let stop = |unit| seconds(&value(unit, "TimeoutStopSec"));
        assert!(stop(UNITS[0]) > example.gateway.drain.deadline.get());
        assert!(stop(UNITS[1]) > example.issuer.drain.deadline.get());
        assert!(stop(UNITS[2]) > example.client.drain.deadline.get());
        let limit = |unit| value(unit, "LimitNOFILE").parse::<usize>().unwrap();
        assert!(limit(UNITS[0]) >= needed(example.gateway.limits.connections, 2));
        assert!(limit(UNITS[1]) >= needed(example.issuer.limits.connections.get(), 1));
    }
}

/// A socket unit hands over what the daemon would open itself.
#[test]
fn socket_units_have_the_addresses_of_the_configurations() {
    let fleet = all().remove("fleet").unwrap();
    let unit = |name| value(name, "ListenStream");
    assert_eq!(unit("postern-gateway.socket"), fleet.gateway.listen.address.to_string());
    assert_eq!(unit("postern-issuer.socket"), fleet.issuer.listen.address.to_string());
}

#[test]
fn units_do_not_restart_what_has_to_be_edited_first() {
    for unit in UNITS {
        assert_eq!(value(unit, "Restart"), "on-failure");
        assert_eq!(
            value(unit, "RestartPreventExitStatus"),
            format!("{} {}", exit::USAGE, exit::CONFIG),
            "{unit}"
        );
        assert_eq!(value(unit, "KillSignal"), "SIGTERM");
        assert_eq!(value(unit, "NoNewPrivileges"), "yes");
        assert_eq!(value(unit, "LimitCORE"), "0", "a core has keys and tokens in it");
        let daemon = unit.strip_prefix("postern-").unwrap().strip_suffix(".service").unwrap();
        assert!(
            value(unit, "ExecStart").starts_with(&format!("/usr/local/bin/postern {daemon} --config ")),
            "{unit}"
        );
        assert_eq!(value(unit, "ExecReload"), "/bin/kill -HUP $MAINPID", "{unit}");
    }
    let memcached = "memcached.service.d/postern.conf";
    // Empty: the tokens that are out are void.
    assert_eq!(value(memcached, "Restart"), "on-failure");
    let started = values(memcached, "ExecStart");
    assert_eq!(started[0], "", "Debian's own command is taken away first");
    assert!(started[1].split(" ").any(|option| option == "-M"), "{started:?}");
}

#[test]
#[ignore = "needs systemd-analyze, of the package systemd"]
fn systemd_reads_the_units() {
    let home = TempDir::new().unwrap();
    for unit in UNITS {
        // It looks whether the program is there.
        let text = read(&deploy("systemd").join(unit));
        let text = text.replace("/usr/local/bin/postern", env!("CARGO_BIN_EXE_postern"));
        let path = home.path().join(unit);
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.arg("verify").args((unit == UNITS[2]).then_some("--user")).arg(&path);
        command.env("XDG_RUNTIME_DIR", home.path()).env("HOME", home.path());
        let verified = command.output().unwrap();
        let output = String::from_utf8_lossy(&verified.stderr);
        // Other units of the machine are read too, and do not matter here.
        let ours: Vec<&str> = output.lines().filter(|line| line.contains(unit)).collect();
        assert!(verified.status.success() && ours.is_empty(), "{unit}: {output}");
    }
}

#[test]
fn every_kernel_setting_has_its_reason() {
    let text = read(&deploy("sysctl/99-postern.conf"));
    let (mut reasons, mut settings) = (0, 0);
    for line in text.lines() {
        match line.split_once(" = ") {
            _ if line.starts_with('#') => reasons += 1,
            Some((name, value)) => {
                assert!(reasons > 0, "{name} has no reason");
                assert!(value.split(' ').all(|number| number.parse::<u64>().is_ok()), "{line}");
                let path = Path::new("/proc/sys").join(name.replace('.', "/"));
                assert!(path.exists(), "this kernel has no {name}");
                (reasons, settings) = (0, settings + 1);
            }
            None => assert!(line.is_empty(), "{line:?}"),
        }
    }
    assert!(settings > 0);
}
