//! Tokens for all runs, minted once. Every run has a store of its own, in which they are new.

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::{admin, tokens};
use std::time::Instant;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// Tokens that are raced for in one run.
pub const TOKENS: usize = 5_000;
/// Tokens for what comes after a race.
pub const RESERVE: usize = 400;

/// Tokens of one issuer's key, and its directory.
pub struct MintedTokens {
    pub tokens: Vec<String>,
    /// The issuer's directory, for gateways to read from a file: the issuer has gone.
    pub directory: String,
}

static MINTED: Mutex<Option<MintedTokens>> = Mutex::const_new(None);

/// The tokens, for one run at a time: runs beside each other would meet deadlines without a fault.
pub struct Turn(MutexGuard<'static, Option<MintedTokens>>);

impl Turn {
    pub async fn take() -> Self {
        let mut minted = MINTED.lock().await;
        if minted.is_none() {
            *minted = Some(MintedTokens::mint().await);
        }
        Self(minted)
    }
}

impl std::ops::Deref for Turn {
    type Target = MintedTokens;

    fn deref(&self) -> &MintedTokens {
        self.0.as_ref().unwrap()
    }
}

impl MintedTokens {
    async fn mint() -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
        let gateway = Daemon::ready("gateway", &config).await;
        let began = Instant::now();
        let tokens = tokens::mint(&issuer.http(), &gateway.http(), TOKENS + RESERVE);
        assert_eq!(tokens.len(), TOKENS + RESERVE);
        println!("{} tokens minted in {:.1?}", tokens.len(), began.elapsed());
        let directory = admin::page(issuer.address, "/.well-known/private-token-issuer-directory").await;
        gateway.process.terminate().assert_stopped();
        issuer.process.terminate().assert_stopped();
        Self { tokens, directory }
    }
}
