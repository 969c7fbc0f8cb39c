//! The authority's HTTP interface, and this server's account there.

use super::{ACCOUNT, AcmeConfig};
use crate::files::{DataDir, write_private};
use crate::http::{ClientError, ClientOptions, chain, client, fetch_limited, one_line};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{Account, AccountCredentials, BodyWrapper, BytesResponse, Error, HttpClient, NewAccount};
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of an answer of an authority, in bytes: a certificate chain has some kilobytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Maximum Retry-After, in seconds: a day.
const LONGEST_PAUSE: u64 = 86_400;
/// The time limit of one request to the authority.
const PATIENCE: Duration = Duration::from_secs(30);

/// File that shows that there is room for a certificate.
const ROOM: &str = "room";

/// An account as stored: with the URL of its authority.
#[derive(Deserialize, Serialize)]
struct Kept {
    directory: String,
    credentials: AccountCredentials,
}

/// The reason that an order failed, as a sentence for the operator.
#[derive(Debug)]
pub(super) struct OrderError(pub(super) String);

impl From<ClientError> for OrderError {
    fn from(error: ClientError) -> Self {
        Self(chain(&error))
    }
}

/// Truncates the text, which is the authority's in part.
impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self(format!("the authority does not give a certificate: {}", one_line(chain(&error).as_bytes())))
    }
}

/// Connector to the authority. It reads the configuration for each attempt, because a CA file may have been corrected.
type Connect = dyn Fn(&AcmeConfig) -> Result<Box<dyn HttpClient>, ClientError> + Send + Sync;

/// The authority of a configuration, and the directory of its certificate and account.
#[derive(Clone)]
pub(crate) struct Authority {
    pub(super) config: Arc<AcmeConfig>,
    folder: Arc<DataDir>,
    connect: Arc<Connect>,
}

impl Authority {
    pub(crate) fn new(config: Arc<AcmeConfig>, folder: Arc<DataDir>) -> Self {
        Self::reached_by(config, folder, Arc::new(connect))
    }

    pub(super) fn reached_by(config: Arc<AcmeConfig>, folder: Arc<DataDir>, connect: Arc<Connect>) -> Self {
        Self { config, folder, connect }
    }

    /// Returns the account in the directory, or creates one and stores it there.
    pub(super) async fn account(&self) -> Result<Account, OrderError> {
        if let Some(account) = self.known_account().await? {
            return Ok(account);
        }
        self.new_account().await
    }

    /// Creates an account, and stores it in place of the previous one.
    pub(super) async fn new_account(&self) -> Result<Account, OrderError> {
        let contact: Vec<_> = self.config.contact.as_deref().into_iter().collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: self.config.agree_to_terms,
            only_return_existing: false,
        };
        let directory = self.config.directory.clone();
        let builder = Account::builder_with_http((self.connect)(&self.config)?);
        let (account, credentials) = builder.create(&new, directory.clone(), None).await?;
        let bytes = serde_json::to_vec(&Kept { directory, credentials }).map_err(Error::Json)?;
        self.keep(ACCOUNT, bytes).await?;
        Ok(account)
    }

    /// Returns the account in the directory; `None` if there is none, or one of another authority.
    pub(super) async fn known_account(&self) -> Result<Option<Account>, OrderError> {
        let Ok(bytes) = tokio::fs::read(self.folder.join(ACCOUNT)).await else { return Ok(None) };
        match serde_json::from_slice(&bytes) {
            Ok(Kept { directory, credentials }) if directory == self.config.directory => {
                let builder = Account::builder_with_http((self.connect)(&self.config)?);
                Ok(Some(builder.from_credentials(credentials).await?))
            }
            _ => Ok(None),
        }
    }

    /// Fails if a certificate could not be stored. Call it before the order: the authority counts certificates, and one that
    /// cannot be stored is lost.
    pub(super) async fn has_room(&self) -> Result<(), OrderError> {
        self.keep(ROOM, vec![0; 16 << 10]).await?;
        let _ = tokio::fs::remove_file(self.folder.join(ROOM)).await; // otherwise it is overwritten the next time
        Ok(())
    }

    /// Writes a file of the directory, as a whole or not at all.
    pub(super) async fn keep(&self, name: &str, bytes: Vec<u8>) -> Result<(), OrderError> {
        let path = self.folder.join(name);
        let file = path.clone();
        let written = tokio::task::spawn_blocking(move || write_private(&file, &bytes)).await;
        let failed = |error| OrderError(format!("cannot write {}: {error}", path.display()));
        written.unwrap_or_else(|ended| Err(ended.into())).map_err(failed)
    }
}

fn connect(config: &AcmeConfig) -> Result<Box<dyn HttpClient>, ClientError> {
    let options = ClientOptions { ca_file: config.ca.clone(), timeout: PATIENCE, ..ClientOptions::default() };
    Ok(Box::new(Http(client(&options)?)))
}

/// Adapter from the HTTP client of all daemons to the ACME crate.
struct Http(reqwest::Client);

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body =
                body.collect().await.map_err(|error| Error::Other(error.to_string().into()))?.to_bytes();
            let request = reqwest::Request::try_from(Request::from_parts(head, body))
                .map_err(|error| Error::Other(chain(&error).into()))?;
            let answer = client.execute(request).await.map_err(|error| Error::Other(chain(&error).into()))?;
            let mut response = Response::new(());
            *response.status_mut() = answer.status();
            *response.headers_mut() = answer.headers().clone();
            // A longer pause has no further meaning, and its end may be out of range.
            let pause =
                answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
            if pause.is_some_and(|pause| pause > LONGEST_PAUSE) {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(LONGEST_PAUSE));
            }
            let body =
                fetch_limited(answer, LONGEST_ANSWER).await.map_err(|error| Error::Other(error.into()))?;
            Ok(BytesResponse::from(response.map(|()| Full::new(body))))
        })
    }
}
