//! Shared code of the project's HTTP proxies: parsing a client's destination ([`target`]), requesting a tunnel from another proxy
//! ([`tunnel`]), relaying bytes in both directions ([`relay`]), ending a connection so that a cut is not mistaken for the end of
//! the data ([`reset`]), rewriting [`headers`], holding back a body until its target accepts it ([`expect`]), checking answers
//! ([`plain`]), bounding idle time ([`idle`]), recognising public addresses ([`address`]),
//! and UDP in HTTP without a socket ([`udp`]).
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
pub mod expect;
pub mod headers;
pub mod http2;
pub mod idle;
pub mod plain;
pub mod relay;
pub mod reset;
pub mod target;
pub mod tunnel;
pub mod udp;
