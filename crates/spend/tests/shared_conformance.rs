//! The shared store against a real memcached: the conformance suite over both transports and kinds of socket.

use crate::conformance::suite;
use crate::support::{Relay, Server, client, marked, options, pipelined, pooled, transports};
use postern_spend::memcached::{Memcached, Options};

fn conforms(options: Options) {
    let store = Memcached::open(options).unwrap();
    suite::check(|| client(&store), &|epoch| marked::begin(&store, epoch))
        .unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn pipelined_conforms() {
    let server = Server::tcp(&[]);
    conforms(options(vec![server.address()], pipelined()));
}

#[test]
fn pooled_conforms() {
    let server = Server::tcp(&[]);
    conforms(options(vec![server.address()], pooled(16)));
}

#[test]
fn both_conform_over_a_unix_socket_with_a_cache_of_spent_keys() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::unix(home.path());
    for (_, transport) in transports() {
        conforms(Options { cache_bytes: 1 << 20, ..options(vec![server.address()], transport) });
    }
}

#[test]
fn two_endpoints_to_one_memory_conform() {
    let server = Server::tcp(&[]);
    let relay = Relay::to(server.port());
    for (_, transport) in transports() {
        conforms(options(vec![server.address(), relay.address()], transport));
    }
}
