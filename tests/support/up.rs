//! `postern up` on free ports.

use super::process::{Ended, Postern, command};
use postern_testkit::ports;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A running `up`, ready.
pub struct Up {
    pub process: Postern,
    pub ports: Ports,
    /// From the start of the process to its banner.
    pub ready_after: Duration,
}

/// All listeners' addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub client: SocketAddr,
    pub gateway: SocketAddr,
    pub issuer: SocketAddr,
    pub admin: SocketAddr,
}

impl Ports {
    /// Whatever is free.
    pub fn any() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { client: any, gateway: any, issuer: any, admin: any }
    }

    /// Ports that no other test gets, for a process that starts again on them.
    pub fn held() -> Self {
        let held = || SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        Self { client: held(), gateway: held(), issuer: held(), admin: held() }
    }
}

/// `postern up` with these ports.
pub fn up(data: &Path, ports: Ports) -> Command {
    let Ports { client, gateway, issuer, admin } = ports;
    let mut command = command(["up", "--data"]);
    command.arg(data);
    for (name, address) in
        [("--client", client), ("--gateway", gateway), ("--issuer", issuer), ("--admin", admin)]
    {
        command.args([name, &address.to_string()]);
    }
    command
}

impl Up {
    /// With open egress, on free ports.
    pub fn start(data: &Path) -> Self {
        Self::start_on(data, Ports::any())
    }

    /// The same on these ports.
    pub fn start_on(data: &Path, ports: Ports) -> Self {
        let mut command = up(data, ports);
        command.arg("--open-egress");
        Self::of(command)
    }

    pub fn of(command: Command) -> Self {
        let started = Instant::now();
        let process = Postern::start(command);
        let ports = Ports {
            client: process.wait_for_address("    agent    "),
            gateway: process.wait_for_address("    gateway  "),
            issuer: process.wait_for_address("    issuer   "),
            admin: process.wait_for_address("    admin    "),
        };
        Self { process, ports, ready_after: started.elapsed() }
    }

    pub fn terminate(self) -> Ended {
        self.process.terminate()
    }
}
