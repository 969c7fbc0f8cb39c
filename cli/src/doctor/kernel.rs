//! Compares this machine's kernel settings with the values of `deploy/sysctl/99-postern.conf`. The costs were measured:
//! `loadtest/results/2026-11-25-kernel.md`.

use postern_daemon::examination::Finding;
use std::path::{Path, PathBuf};

const FILE: &str = include_str!("../../../deploy/sysctl/99-postern.conf");

/// A kernel setting, and the cost of an insufficient value.
struct Setting {
    name: &'static str,
    is_enough: fn(present: &[u64], ours: &[u64]) -> bool,
    cost: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        name: "net.ipv4.ip_local_port_range",
        is_enough: |present, ours| span(present) >= span(ours),
        cost: "tunnels to one address and port of a target can be no more than these ports; the next client gets 502",
    },
    Setting {
        name: "net.ipv4.tcp_tw_reuse",
        is_enough: |present, ours| present == ours,
        cost: "the port of a tunnel that its client closed rests for a minute, so that one target is out of ports at 470 \
               tunnels a second, with the default range",
    },
    Setting {
        name: "net.ipv4.tcp_slow_start_after_idle",
        is_enough: |present, ours| present == ours || has_bbr(),
        cost: "a tunnel that paused begins slowly again: half a second more for 512 KiB to a client that is 100 ms away",
    },
    Setting {
        name: "net.core.somaxconn",
        is_enough: |present, ours| present >= ours,
        cost: "of many clients that connect at once, those for whom the queue has no room wait for a second",
    },
];

/// Returns a finding for each insufficient setting, or a single finding if all settings are sufficient.
pub(super) fn examine() -> Vec<Finding> {
    let found: Vec<Finding> = SETTINGS.iter().filter_map(Setting::examine).collect();
    if found.is_empty() {
        return vec![Finding::well("kernel", "a gateway finds its settings as they should be")];
    }
    found
}

impl Setting {
    /// Returns `None` if the setting is sufficient or absent.
    fn examine(&self) -> Option<Finding> {
        let Self { name, is_enough, cost } = *self;
        let (present, ours) = (present(name)?, ours(name)?);
        if is_enough(&present, &ours) {
            return None;
        }
        let [present, enough] =
            [present, ours].map(|values| values.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        let finding = Finding::look("kernel", format!("{name} is {present}")).costs(cost);
        Some(finding.remedy(format!(
            "for a gateway: sysctl -w {name}=\"{enough}\", for good as deploy/sysctl does it"
        )))
    }
}

fn span(range: &[u64]) -> u64 {
    match *range {
        [first, last] => last.saturating_sub(first),
        _ => 0,
    }
}

/// `true` if BBR is active: it does not restart slowly after idle, whatever the setting is.
fn has_bbr() -> bool {
    read("net.ipv4.tcp_congestion_control").is_some_and(|name| name.trim() == "bbr")
}

/// Returns `None` if this kernel or container lacks the setting.
fn present(name: &str) -> Option<Vec<u64>> {
    numbers(&read(name)?)
}

fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/proc/sys").join(PathBuf::from(name.replace('.', "/")))).ok()
}

fn ours(name: &str) -> Option<Vec<u64>> {
    let value = FILE.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='))?;
    numbers(value)
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_the_file_is_judged_and_enough_by_itself() {
        let names =
            FILE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
        let mut judged = 0;
        for (name, _) in names {
            let setting = SETTINGS.iter().find(|setting| setting.name == name);
            let setting = setting.unwrap_or_else(|| panic!("{name} is not judged"));
            let ours = ours(name).unwrap();
            assert!((setting.is_enough)(&ours, &ours), "{name}");
            judged += 1;
        }
        assert_eq!(judged, SETTINGS.len());
    }

    #[test]
    fn the_defaults_of_a_kernel_are_too_little_for_a_gateway() {
        for (setting, default) in SETTINGS.iter().zip([&[32768, 60999][..], &[2], &[1], &[128]]) {
            let is_enough = (setting.is_enough)(default, &ours(setting.name).unwrap());
            assert!(!is_enough || setting.name.ends_with("after_idle") && has_bbr(), "{}", setting.name);
        }
    }
}
