//! Looking credentials up in the database, on a thread of its own: a disk that is slow holds up no account that is in memory.
//!
//! Only keys that this issuer has made or was told get here ([`mod@super::api_key`]), so that guesses do not compete with accounts.

use super::active::{Credential, Found, Standing};
use super::store::Store;
use super::{certificates, records};
use rusqlite::Connection;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Questions that wait. One takes some ten microseconds when the disk is not asked.
const QUEUE: usize = 1_024;
/// How long a request waits for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Lookups {
    questions: mpsc::Sender<Question>,
}

/// What an account is looked up by.
#[derive(Clone, Debug)]
pub(crate) enum By {
    Credential(Credential),
    /// Its name, which an authorizer gave.
    Name(String),
}

/// What to look up, and what counts where the database does not have it.
struct Question {
    by: By,
    otherwise: Option<Found>,
    answer: oneshot::Sender<Result<Option<Found>, Unreadable>>,
}

/// The database did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

impl Lookups {
    pub(crate) fn start(store: Arc<Store>) -> Result<Self, io::Error> {
        let reader = store.reader().map_err(io::Error::other)?;
        let (questions, mut asked) = mpsc::channel::<Question>(QUEUE);
        let answering = move || {
            let mut is_failing = false;
            while let Some(Question { by, otherwise, answer }) = asked.blocking_recv() {
                if answer.is_closed() {
                    continue; // the client has gone
                }
                let found = find(&reader, &store, &by, otherwise);
                if let Err(error) = &found
                    && !is_failing
                {
                    tracing::error!("{}", store.error(error)); // once, until it answers again
                }
                is_failing = found.is_err();
                let _ = answer.send(found.map_err(|_| Unreadable)); // or the client has gone now
            }
        };
        std::thread::Builder::new().name("accounts".to_owned()).spawn(answering)?;
        Ok(Self { questions })
    }

    /// The account in the database, or `otherwise` where that has none of its name.
    pub(crate) async fn find(&self, by: By, otherwise: Option<Found>) -> Result<Option<Found>, Unreadable> {
        let (answer, found) = oneshot::channel();
        // A full queue is a disk that does not answer: one more request would wait for nothing.
        self.questions.try_send(Question { by, otherwise, answer }).map_err(|_| Unreadable)?;
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => Err(Unreadable),
        }
    }
}

/// The database comes first: an account of this issuer's own is what its operator says, whatever an authorizer does.
fn find(
    connection: &Connection,
    store: &Store,
    by: &By,
    otherwise: Option<Found>,
) -> rusqlite::Result<Option<Found>> {
    let stored = match by {
        By::Credential(Credential::ApiKey(digest)) => {
            records::find_by_key(connection, &store.secret().stored(digest))?
        }
        By::Credential(Credential::Certificate(key)) => {
            certificates::find(connection, key)?.map(|record| (record, None))
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
