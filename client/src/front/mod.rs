//! What programs on this machine speak to: HTTP and SOCKS5 on one port, and the agent's own pages. `connections` accepts and
//! tells the protocols apart; `answer` chooses every status.

pub(crate) mod answer;
pub(crate) mod connections;
pub(crate) mod forward;
pub(crate) mod http_proxy;
pub(crate) mod own_pages;
pub(crate) mod socks;
pub(crate) mod state;
