//! Lookups in the database on a separate thread: a slow disk delays no account that is in memory.
//!
//! API keys arrive here only if this issuer made them or a file declares them ([`mod@super::api_key`]), so that guesses do not
//! compete with accounts.

use super::active::{Credential, Found, NoAccount, Standing};
use super::records;
use super::store::{PATIENCE, Store};
use crate::database::{Connection, Result};
use std::io;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Largest number of waiting lookups. One takes about 10 µs without disk access.
const QUEUE: usize = 1_024;

/// The lookup thread, which ends when this handle is dropped.
#[derive(Debug)]
pub(crate) struct Lookups {
    questions: mpsc::Sender<Question>,
}

/// The search key of a lookup.
#[derive(Clone, Debug)]
pub(crate) enum By {
    Credential(Credential),
    /// Account name from the authorizer.
    Name(String),
}

/// A lookup, and its result if the database has no match.
struct Question {
    by: By,
    otherwise: Option<Found>,
    answer: oneshot::Sender<Result<Option<Found>, NoAccount>>,
}

impl Lookups {
    pub(crate) fn start(store: Arc<Store>) -> Result<Self, io::Error> {
        let reader = store.reader().map_err(io::Error::other)?;
        let (questions, mut asked) = mpsc::channel::<Question>(QUEUE);
        let answering = move || {
            let mut is_failing = false;
            while let Some(Question { by, otherwise, answer }) = asked.blocking_recv() {
                if answer.is_closed() {
                    continue; // the client is gone
                }
                let found = find(&reader, &store, &by, otherwise);
                if let Err(error) = &found
                    && !is_failing
                {
                    tracing::error!("{}", store.error(error)); // once, until a lookup succeeds
                }
                is_failing = found.is_err();
                let _ = answer.send(found.map_err(|_| NoAccount::Unreadable)); // the client may be gone
            }
        };
        std::thread::Builder::new().name("accounts".to_owned()).spawn(answering)?;
        Ok(Self { questions })
    }

    /// Returns the account in the database, or `otherwise` if the database has none.
    pub(crate) async fn find(&self, by: By, otherwise: Option<Found>) -> Result<Option<Found>, NoAccount> {
        let (answer, found) = oneshot::channel();
        // A full queue means that the disk does not answer: another request would wait in vain.
        self.questions.try_send(Question { by, otherwise, answer }).map_err(|_| NoAccount::Unreadable)?;
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => Err(NoAccount::Unreadable),
        }
    }
}

/// Finds an account. The database takes precedence: settings of this issuer's operator override the authorizer's.
fn find(connection: &Connection, store: &Store, by: &By, otherwise: Option<Found>) -> Result<Option<Found>> {
    let stored = match by {
        By::Credential(Credential::ApiKey(digest)) => {
            let found = records::find_by_key(connection, &store.secret().stored(digest))?;
            found.map(|(record, key)| (record, key.retires_at))
        }
        By::Credential(Credential::Certificate(key)) => {
            records::find_by_certificate(connection, key)?.map(|record| (record, None))
        }
        By::Name(name) => records::find(connection, name)?.map(|record| (record, None)),
    };
    if let Some((record, key_retires_at)) = stored {
        let records::Record { name, enabled, terms, .. } = record;
        let standing = Standing { enabled, expires_at: terms.expires_at, key_retires_at, known_until: None };
        return Ok(Some(Found { name, terms, standing }));
    }
    Ok(otherwise)
}
