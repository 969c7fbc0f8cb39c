//! Requests for UDP, capsules; and an agent whose programs use UDP, the way to its gateway, and the gateway.

use super::admin::{Metrics, metrics_when};
use super::association::Program;
use super::daemon::{Daemon, client_config, gateway_config, issuer_config};
use super::proxy::{Head, read_head};
use super::tls::Authority;
use super::{edit, eventually, in_time};
use postern_testkit::ports;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

/// A DATAGRAM capsule of context 0 (RFC 9297, section 3.5; RFC 9298, section 5).
pub fn capsule(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u64 + 1;
    let length = match length {
        0..0x40 => vec![length as u8],
        0x40..0x4000 => (length as u16 | 0x4000).to_be_bytes().to_vec(),
        _ => (length as u32 | 0x8000_0000).to_be_bytes().to_vec(),
    };
    [&[0], &length[..], &[0], payload].concat()
}

/// The path that names a target (RFC 9298, section 3).
pub fn path(target: SocketAddr) -> String {
    format!("/.well-known/masque/udp/{}/{}/", target.ip(), target.port())
}

/// A request over HTTP/1.1 with this path, which is also a URL's in some clients, and these fields.
pub fn request(uri: &str, fields: &str) -> String {
    format!(
        "GET {uri} HTTP/1.1\r\nHost: proxy.example\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n{fields}\r\n"
    )
}

/// Asks for UDP with the value of Proxy-Authorization, if there is one, and reads the answer's head.
pub async fn upgrade<S>(stream: &mut S, target: SocketAddr, authorization: Option<&str>) -> io::Result<Head>
where
    S: AsyncBufReadExt + AsyncWrite + Unpin,
{
    let field = authorization.map_or(String::new(), |value| format!("Proxy-Authorization: {value}\r\n"));
    in_time(stream.write_all(request(&path(target), &field).as_bytes())).await?;
    in_time(read_head(stream)).await
}

/// The way from the agent to the gateway.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    Http2,
}

/// An issuer, a gateway and an agent.
pub struct Stage {
    pub _home: TempDir,
    pub issuer: Daemon,
    pub gateway: Daemon,
    pub gateway_file: PathBuf,
    pub agent: Daemon,
    pub agent_file: PathBuf,
}

impl Stage {
    pub async fn start(way: Way) -> Self {
        Self::with(way, "udp = \"any\"\n", "").await
    }

    /// One with these lines in `[egress]` of the gateway, and in `[listen]` of the agent.
    pub async fn with(way: Way, egress: &str, listen: &str) -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let tls = if let Way::Plain = way { String::new() } else { authority.section() };
        let gateway_file = gateway_config(home.path(), &issuer.http(), "", "1s", &(egress.to_owned() + &tls));
        // The kernel would give a port of its own choice to another test while the gateway starts again.
        edit(
            &gateway_file,
            "address = \"127.0.0.1:0\"",
            &format!("address = \"127.0.0.1:{}\"", ports::free()),
        );
        let gateway = Daemon::ready("gateway", &gateway_file).await;
        let (url, tunnels) = match way {
            Way::Plain => (gateway.http(), ""),
            Way::Tls => (gateway.https(), "tunnels = 1\n"),
            Way::Http2 => (gateway.https(), ""),
        };
        let file = client_config(home.path(), &url, &issuer.http(), Some(&authority.ca));
        edit(&file, "[gateway]\n", &format!("[gateway]\n{tunnels}"));
        edit(&file, "[listen]\n", &format!("[listen]\n{listen}"));
        let agent = Daemon::ready("client", &file).await;
        Self { _home: home, issuer, gateway, gateway_file, agent, agent_file: file }
    }

    pub async fn program(&self) -> Program {
        Program::of(self.agent.address).await
    }

    /// Returns the number of streams that the gateway has opened, once the agent counts as many tokens and answers.
    pub async fn opened(&self) -> u64 {
        eventually("gateway and agent agree", || async {
            let opened = Metrics::of(self.gateway.admin).await.requests("opened");
            let agent = Metrics::of(self.agent.admin).await;
            let agree = agent.agent_requests("opened") == opened && tokens(&agent, "opened") == opened;
            agree.then_some(opened)
        })
        .await
    }

    /// Waits until agent and gateway have as many streams.
    pub async fn has_streams(&self, count: u64) {
        for (admin, series) in [
            (self.gateway.admin, "postern_udp_tunnels_open"),
            (self.agent.admin, "postern_agent_udp_streams_open"),
        ] {
            metrics_when(admin, &format!("{series} is {count}"), |metrics| metrics.value(series) == count)
                .await;
        }
    }

    pub async fn dropped(&self, count: u64) {
        metrics_when(self.agent.admin, &format!("{count} datagrams are dropped"), |metrics| {
            metrics.value("postern_agent_udp_dropped_total") >= count
        })
        .await;
    }
}

pub fn tokens(agent: &Metrics, fate: &str) -> u64 {
    agent.value(&format!("postern_agent_tokens_total{{fate=\"{fate}\",hop=\"last\"}}"))
}
