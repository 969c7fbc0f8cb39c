//! The agent's own pages: how to use it, and `/proxy.pac`, the script by which one URL configures a browser (RFC 3040, section 6.2).
//!
//! The script contains no secret. It is for this machine only, and a web page in its browser cannot read it: not from another
//! origin, because no answer allows it; not by DNS rebinding, because the Host field is checked. Such a page can only learn
//! that something listens on this port.

use crate::catalogue::AgentOutcome;
use crate::front::state::AgentState;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use postern_daemon::http::{is_for_this_machine, text};
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;

const HOW_TO_USE: &str = "/";
const PAC: &str = "/proxy.pac";

/// The two ends of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionEnds {
    /// The address at which the client reached the agent.
    agent: SocketAddr,
    client: SocketAddr,
}

impl ConnectionEnds {
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self { agent: canonical(stream.local_addr()?), client: canonical(stream.peer_addr()?) })
    }

    /// Returns `true` if a request is to the agent itself: in origin form, or with the agent's own address, to which a tunnel
    /// would at best lead back (RFC 9112, section 3.2.2).
    pub(crate) fn are_meant_by(&self, uri: &Uri) -> bool {
        uri.authority().is_none_or(|authority| authority.as_str() == self.agent.to_string())
    }

    fn are_on_this_machine(&self) -> bool {
        self.agent.ip().is_loopback() && self.client.ip().is_loopback()
    }
}

/// Converts IPv4-mapped addresses, which a listener for both families reports.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Answers a request to the agent itself. Nothing of it goes to a gateway.
pub(crate) fn answer<B>(
    request: &Request<B>,
    ends: ConnectionEnds,
    state: &AgentState,
) -> Response<Full<Bytes>> {
    let refuse = |response| {
        state.count(AgentOutcome::BadRequest);
        response
    };
    let path = request.uri().path();
    let is_reading = request.method() == Method::GET || request.method() == Method::HEAD;
    if !is_reading || ![HOW_TO_USE, PAC].contains(&path) {
        let sentence =
            "This is a proxy, not a web server: send CONNECT, or a request with a whole http:// address";
        return refuse(text(StatusCode::BAD_REQUEST, format!("{sentence}.\n")));
    }
    if ends.agent.ip().is_loopback() && !is_for_this_machine(request.headers()) {
        let sentence = "This agent is on loopback: address it as localhost or by its IP address.\n";
        return refuse(text(StatusCode::MISDIRECTED_REQUEST, sentence));
    }
    if path == HOW_TO_USE {
        return how_to_use(ends.agent);
    }
    if !ends.are_on_this_machine() {
        let sentence = format!(
            "{PAC} is for programs on the agent's own machine, at a loopback address. From elsewhere, set {} as the HTTP \
             proxy by hand.\n",
            ends.agent
        );
        return refuse(text(StatusCode::FORBIDDEN, sentence));
    }
    let mut response = Response::new(Full::new(pac(ends.agent).into()));
    let fields = [
        (header::CONTENT_TYPE, "application/x-ns-proxy-autoconfig"),
        // A cached copy could contain an address that the agent no longer has.
        (header::CACHE_CONTROL, "no-cache"),
        // Prevents a page of another origin from loading the script through any element.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fields {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn how_to_use(address: SocketAddr) -> Response<Full<Bytes>> {
    let body = format!(
        "This is a Postern agent: an HTTP and SOCKS5 proxy on one port.\n\n\
         curl -x http://{address} https://example.com/\n\
         curl -x socks5h://{address} https://example.com/\n\n\
         In a browser, set http://{address}/proxy.pac as the address of the automatic configuration, or {address} as the HTTP \
         proxy for all protocols, or as the SOCKS5 host with DNS through the proxy.\nEach tunnel is paid for with one token.\n"
    );
    text(StatusCode::OK, body)
}

fn pac(agent: SocketAddr) -> String {
    format!(
        "// Everything goes through the Postern agent on this machine. Without \"; DIRECT\": with it, a browser connects directly
// when the agent is down.
function FindProxyForURL(url, host) {{
    return \"PROXY {agent}\";
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(agent: &str, client: &str) -> ConnectionEnds {
        ConnectionEnds {
            agent: canonical(agent.parse().unwrap()),
            client: canonical(client.parse().unwrap()),
        }
    }

    #[test]
    fn an_address_is_written_as_a_client_reaches_it() {
        let mapped = ends("[::ffff:127.0.0.1]:8118", "[::ffff:127.0.0.1]:5");
        assert!(mapped.are_on_this_machine());
        assert!(pac(mapped.agent).contains("\"PROXY 127.0.0.1:8118\""));
        assert!(pac(ends("[::1]:8118", "[::1]:5").agent).contains("\"PROXY [::1]:8118\""));
    }

    #[test]
    fn another_machine_is_none_of_this_one() {
        for (agent, client) in [("192.0.2.1:8118", "192.0.2.2:5"), ("192.0.2.1:8118", "192.0.2.1:5")] {
            assert!(!ends(agent, client).are_on_this_machine(), "{agent} {client}");
        }
    }

    #[test]
    fn only_the_agents_own_address_means_the_agent() {
        let ends = ends("127.0.0.1:8118", "127.0.0.1:5");
        let meant = |uri: &str| ends.are_meant_by(&uri.parse().unwrap());
        assert!(meant("/proxy.pac") && meant("http://127.0.0.1:8118/proxy.pac"));
        for uri in
            ["http://127.0.0.1:8119/proxy.pac", "http://127.0.0.1/proxy.pac", "http://proxy.example:8118/"]
        {
            assert!(!meant(uri), "{uri}");
        }
    }
}
