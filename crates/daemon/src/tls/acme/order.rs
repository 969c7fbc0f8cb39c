//! One order (RFC 8555, section 7.4): the names are validated, then a certificate is issued. The authority's HTTP interface, and
//! this server's account there.

use super::{ACCOUNT, AcmeConfig, Challenges};
use crate::files::{DataDir, write_private};
use crate::http::{ClientError, ClientOptions, chain, client, fetch_limited, one_line};
use crate::tls::identity::Shown;
use crate::tls::validity::Validity;
use crate::utc::unix_now;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{
    Account, AccountCredentials, AuthorizationHandle, AuthorizationStatus, BodyWrapper, BytesResponse,
    CertificateIdentifier, ChallengeType, Error, HttpClient, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, Problem, RetryPolicy,
};
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit of the validation of the names, and then of the issuance.
const VALIDATION: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// Type of the problem of an unknown account (RFC 8555, section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// A suitable certificate that was issued.
pub(super) struct Given {
    /// Key and chain, as stored.
    pub(super) pem: String,
    pub(super) shown: Shown,
    pub(super) validity: Validity,
}

/// Orders a certificate for the names of the configuration, in place of `shown`. `is_finalized` is set as soon as the authority
/// may have issued one, which counts in its limits even if it is not used.
pub(super) async fn order(
    authority: &Authority,
    challenges: &Challenges,
    shown: Option<&Shown>,
    is_finalized: &AtomicBool,
) -> Result<Given, OrderError> {
    authority.has_room().await?;
    let names: Vec<_> = authority.config.names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = match open(&authority.account().await?, &names, shown).await {
        Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
            tracing::warn!("the authority does not know the account that is kept, so a new one is made");
            open(&authority.new_account().await?, &names, shown).await?
        }
        opened => opened?,
    };
    let proved = prove(&mut order, challenges).await;
    challenges.forget();
    proved?;
    is_finalized.store(true, Ordering::Relaxed);
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&VALIDATION).await?;
    judge(&authority.config, format!("{key}{chain}"))
}

async fn open(account: &Account, names: &[Identifier], shown: Option<&Shown>) -> Result<Order, Error> {
    let replaced = shown.and_then(Shown::own).and_then(|own| CertificateIdentifier::try_from(own).ok());
    if let Some(replaced) = replaced {
        // Declares the old certificate replaced, so that the authority's limits need not count it (RFC 9773, section 5). The
        // authority may have no record of that certificate.
        if let Ok(order) = account.new_order(&NewOrder::new(names).replaces(replaced)).await {
            return Ok(order);
        }
    }
    account.new_order(&NewOrder::new(names)).await
}

/// Checks a certificate before it replaces anything.
fn judge(config: &AcmeConfig, pem: String) -> Result<Given, OrderError> {
    let refused = |reason: &str| OrderError(format!("the authority's certificate {reason}"));
    let shown =
        Shown::from_pem(pem.as_bytes()).map_err(|error| refused(&format!("cannot be used: {error}")))?;
    let validity = shown.own().and_then(|own| config.fits(own));
    let validity = validity.ok_or_else(|| refused("does not have all of the names"))?;
    if validity.until <= unix_now() {
        return Err(refused("has ended by this machine's clock: set the clock"));
    }
    Ok(Given { pem, shown, validity })
}

async fn prove(order: &mut Order, challenges: &Challenges) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue; // validated recently
        }
        let name = named(&authorization);
        let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
            return Err(OrderError(format!(
                "the authority does not offer to look at the TLS port of {name} (TLS-ALPN-01): use another one, or files"
            )));
        };
        challenges
            .show(&name, challenge.key_authorization().digest().as_ref())
            .map_err(|error| OrderError(format!("cannot make the challenge's certificate: {error}")))?;
        challenge.set_ready().await.map_err(|error| match error {
            // The authority has validated the name already.
            Error::Api(reason) => not_seen(&name, &reason),
            error => error.into(),
        })?;
    }
    let failed = match order.poll_ready(&VALIDATION).await {
        Ok(OrderStatus::Ready) => return Ok(()),
        Ok(_) => Error::Str("the reason why the order is not ready"),
        Err(error) => error,
    };
    Err(find_not_seen(order).await?.unwrap_or_else(|| failed.into()))
}

fn named(authorization: &AuthorizationHandle<'_>) -> String {
    one_line(authorization.identifier().to_string().as_bytes())
}

fn not_seen(name: &str, reason: &Problem) -> OrderError {
    OrderError(format!(
        "the authority could not see that {name} is this server: {}. It connects to port 443 of each address of the name, which \
         must lead to this server's TLS listener",
        one_line(reason.to_string().as_bytes())
    ))
}

/// Returns the name that the authority did not find to be this server's, and the reason.
async fn find_not_seen(order: &mut Order) -> Result<Option<OrderError>, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        authorization.refresh().await?;
        let reason = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(reason) = reason {
            return Ok(Some(not_seen(&named(&authorization), reason)));
        }
    }
    Ok(None)
}

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
