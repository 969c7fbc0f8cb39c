//! The front: HTTP and SOCKS5 on one port for the programs of this machine, and the agent's own pages. `connections` admits a
//! connection; `http_proxy` (with `forward`) or `socks` serves it; `answer` chooses every status.

pub(crate) mod answer;
pub(crate) mod connections;
pub(crate) mod forward;
pub(crate) mod http_proxy;
pub(crate) mod own_pages;
pub(crate) mod socks;
pub(crate) mod state;
