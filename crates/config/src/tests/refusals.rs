//! The errors of wrong configurations.

use super::*;

fn refusal(text: &str, env: &[(&str, &str)]) -> String {
    read(text, env).unwrap_err().to_string()
}

fn assert_refused(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(refusal(text, &[]), *expected, "for\n{text}");
    }
}

#[test]
fn unknown_keys_are_refused_with_their_place_and_the_nearest_name() {
    assert_refused(&[
        (
            "[listen]\n\nadress = \"127.0.0.1:1\"",
            "gateway.toml, line 3: unknown key \"listen.adress\"; did you mean \"listen.address\"?",
        ),
        ("[stroe]", "gateway.toml, line 1: unknown key \"stroe\"; did you mean \"store\"?"),
        (
            "[store.memcached]\naddreses = []",
            "gateway.toml, line 2: unknown key \"store.memcached.addreses\"; \
             did you mean \"store.memcached.addresses\"?",
        ),
        (
            "[store]\nconnect_timeout = \"1s\"",
            "gateway.toml, line 2: unknown key \"store.connect_timeout\"; \
             did you mean \"store.memcached.connect_timeout\"?",
        ),
        (
            "[egress]\ncolour = 1",
            "gateway.toml, line 2: unknown key \"egress.colour\"; [egress] may have ports, private, share",
        ),
        (
            "colour = 1",
            "gateway.toml, line 1: unknown key \"colour\"; the file may have accounts, egress, listen, store, tls",
        ),
        (
            "[[accounts]]\nname = \"a\"\nquota = 1\n[[accounts]]\nnaem = \"b\"\nquota = 1",
            "gateway.toml, line 5: unknown key \"accounts.naem\"; did you mean \"accounts.name\"?",
        ),
        (
            "[listen]\nbaklog = 1\n[egress]\nprot = 1",
            "gateway.toml, line 2: unknown key \"listen.baklog\"; did you mean \"listen.backlog\"?\n\
             gateway.toml, line 4: unknown key \"egress.prot\"; did you mean \"egress.ports\"?",
        ),
    ]);
}

#[test]
fn wrong_values_are_refused_with_their_place_and_what_to_write() {
    let duration = "write a duration with its unit, such as \"250ms\", \"10s\", \"5m\", \"24h\" or \"30d\"";
    assert_refused(&[
        (
            "[egress]\nprivate = 3",
            "gateway.toml, line 2: egress.private = 3 is not accepted; write true or false",
        ),
        (
            "[listen]\nbacklog = 70000",
            "gateway.toml, line 2: listen.backlog = 70000 is not accepted; write a whole number from 0 to 65535",
        ),
        (
            "[store]\nkind = \"redis\"",
            "gateway.toml, line 2: store.kind = \"redis\" is not accepted; write \"embedded\" or \"memcached\"",
        ),
        (
            "[egress]\nports = [80,\n\"x\"]",
            "gateway.toml, line 2: egress.ports = [80, \"x\"] is not accepted; \
             write \"any\", or a list, each item a whole number from 0 to 65535",
        ),
        (
            "[store.memcached]\naddresses = [\"a:1\", 2]",
            "gateway.toml, line 2: store.memcached.addresses[1] = 2 is not accepted; write a string",
        ),
        (
            "[listen]\naddress = \"localhost\"",
            "gateway.toml, line 2: listen.address = \"localhost\" is not accepted: invalid socket address syntax",
        ),
        (
            "[listen]\nheader_timeout = 10",
            &format!(
                "gateway.toml, line 2: listen.header_timeout = 10 is not accepted: a bare number has no unit; {duration}"
            ),
        ),
        (
            "[listen]\nheader_timeout = \"10 parsecs\"",
            &format!(
                "gateway.toml, line 2: listen.header_timeout = \"10 parsecs\" is not accepted: \
                 the unit is not one of ms, s, m, h and d; {duration}"
            ),
        ),
        (
            "[store.memcached]\nconnect_timeout = true",
            &format!(
                "gateway.toml, line 2: store.memcached.connect_timeout = true is not accepted; {duration}"
            ),
        ),
        ("listen = 3", "gateway.toml, line 1: listen = 3 is not accepted; write a table"),
        // a secret is not shown
        (
            "[store]\npassword = 123456",
            "gateway.toml, line 2: store.password is not accepted; write a string",
        ),
    ]);
}

#[test]
fn missing_keys_and_broken_files_are_refused_with_their_place() {
    assert_refused(&[
        (
            "[tls]\nkey = \"k\"",
            "gateway.toml, line 1: tls.certificate is missing; write a string, or set POSTERN_TLS_CERTIFICATE",
        ),
        (
            "[tls]\n[[accounts]]\nname = \"a\"",
            "gateway.toml, line 2: accounts[0].quota is missing; write a whole number, 0 or more\n\
             gateway.toml, line 1: tls.certificate is missing; write a string, or set POSTERN_TLS_CERTIFICATE\n\
             gateway.toml, line 1: tls.key is missing; write a string, or set POSTERN_TLS_KEY",
        ),
        (
            "[[accounts]]\nname = \"a\"\nquota = 1\n[[accounts]]\nname = \"b\"",
            "gateway.toml, line 4: accounts[1].quota is missing; write a whole number, 0 or more",
        ),
        (
            "[listen]\naddress = ",
            "gateway.toml, line 2: this is not TOML: string values must be quoted, expected literal string",
        ),
        (
            "[listen]\nbacklog = 1\nbacklog = 2",
            "gateway.toml, line 3: \"backlog\" is there a second time in its section: keep one of the two",
        ),
    ]);
}

#[test]
fn a_wrong_variable_is_named_and_the_file_is_not() {
    let cases = [
        (
            ("POSTERN_LISTEN_BACKLOG", "many"),
            "the environment variable POSTERN_LISTEN_BACKLOG: listen.backlog = \"many\" is not accepted; \
             write a whole number from 0 to 65535",
        ),
        (
            ("POSTERN_EGRESS_PRIVATE", "yes"),
            "the environment variable POSTERN_EGRESS_PRIVATE: egress.private = \"yes\" is not accepted; \
             write true or false",
        ),
        (
            ("POSTERN_STORE_MEMCACHED_ADDRESSES", "[\"a\", 2]"),
            "the environment variable POSTERN_STORE_MEMCACHED_ADDRESSES: store.memcached.addresses[1] = \
             \"[\\\"a\\\", 2]\" is not accepted; write a string",
        ),
        (
            ("POSTERN_LISTEN_MAX_HEADER", "10"),
            "the environment variable POSTERN_LISTEN_MAX_HEADER: listen.max_header = \"10\" is not accepted: \
             a bare number has no unit; write a size with its unit, such as \"512B\", \"64KiB\" or \"10MiB\"",
        ),
    ];
    for (variable, expected) in cases {
        assert_eq!(refusal("[listen]\nbacklog = 1", &[variable]), expected);
    }
}
