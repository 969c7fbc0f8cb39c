//! A real Pebble, the test authority of Let's Encrypt, on its own ports.

use super::tls::Authority;
use super::{PATIENCE, eventually};
use postern_testkit::ports;
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// It forgets everything when it is dropped.
pub struct Pebble {
    child: Child,
    http: reqwest::Client,
    port: u16,
    management: u16,
}

impl Pebble {
    /// Its own TLS is `authority`'s. It gives certificates of this `life`, and looks for names at `tls_port`.
    pub async fn start(home: &Path, authority: &Authority, tls_port: u16, life: Duration) -> Self {
        let binary = std::env::var_os("POSTERN_PEBBLE").expect("POSTERN_PEBBLE names a Pebble binary");
        let [port, management] = [(); 2].map(|()| ports::free());
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": authority.certificate,
            "privateKey": authority.key,
            "httpPort": 1,
            "tlsPort": tls_port,
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "", "validityPeriod": life.as_secs() } },
        }});
        let path = home.join("pebble.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(&binary);
        // Of 5 % refused nonces, which is its default, three in a row fail a test in a hundred runs.
        command.arg("-config").arg(path).env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let ca = reqwest::Certificate::from_pem(&std::fs::read(&authority.ca).unwrap()).unwrap();
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([ca]);
        let http = http.user_agent("postern-test").timeout(PATIENCE).build().unwrap();
        let pebble = Self { child, http, port, management };
        eventually("Pebble answers", || async { pebble.http.get(pebble.directory()).send().await.ok() })
            .await;
        pebble
    }

    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.port)
    }

    /// The certificate, as PEM, to which all that it gives lead.
    pub async fn root(&self) -> String {
        let answer =
            self.http.get(format!("https://localhost:{}/roots/0", self.management)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Has it advise from now on to renew this certificate (PEM) in a time that is over, as before a revocation.
    pub async fn wants_renewed(&self, certificate: &str) {
        let advice =
            json!({ "suggestedWindow": { "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z" } });
        let url = format!("https://localhost:{}/set-renewal-info/", self.management);
        let body = json!({ "Certificate": certificate, "ARIResponse": advice.to_string() }).to_string();
        let answer = self.http.post(url).body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
