//! What every HTTP proxy of the project does alike: it reads where a client wants to go ([`target`]),
//! asks another proxy for a tunnel ([`tunnel`]), copies bytes both ways until both sides are done ([`relay`]), ends in a way that cannot be taken for the end of what was
//! sent ([`reset`]), rewrites [`headers`], holds a body back until its target wants it ([`expect`]), judges answers ([`plain`]), bounds
//! their heads ([`answer_head`]) and the time in which nothing moves ([`idle`]), and distinguishes public addresses from others
//! ([`address`]).
//!
//! ```
//! use http::{HeaderMap, header};
//! use postern_proxy::headers::remove_hop_by_hop;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert(header::CONNECTION, "x-hop".parse().unwrap());
//! headers.insert("x-hop", "for the next proxy alone".parse().unwrap());
//! headers.insert(header::ACCEPT, "text/html".parse().unwrap());
//! remove_hop_by_hop(&mut headers);
//! assert_eq!(headers.keys().collect::<Vec<_>>(), [header::ACCEPT]);
//! ```

pub mod address;
pub mod answer_head;
pub mod expect;
pub mod headers;
pub mod http2;
pub mod idle;
pub mod plain;
pub mod relay;
pub mod reset;
pub mod target;
pub mod tunnel;
