//! One order (RFC 8555, section 7.4): the names are proved, then a certificate is given.

use super::authority::{account, keep};
use super::challenge::{ChallengeError, Challenges};
use super::{AcmeConfig, CERTIFICATE};
use crate::files::DataDir;
use crate::http::ClientError;
use instant_acme::{
    AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rustls_pki_types::CertificateDer;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How long the authority may take to look at the names, and then for the certificate.
const VALIDATION: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// A file that shows that there is room for a certificate.
const ROOM: &str = "room";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("the authority does not give a certificate: {0}")]
    Authority(#[from] Error),
    #[error(
        "the authority could not see that {name} is this server: {reason}. It connects to port 443 of each address of the name, \
         which must lead to this server's TLS listener"
    )]
    NotSeen { name: String, reason: String },
    #[error(
        "the authority does not offer to look at the TLS port of {name} (TLS-ALPN-01): use another one, or files"
    )]
    NoWay { name: String },
    #[error(transparent)]
    Challenge(#[from] ChallengeError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot write {}: {source}", path.display())]
    Keep { path: PathBuf, source: io::Error },
    #[error("the authority took longer than {0:?}")]
    TooLong(Duration),
}

/// Orders a certificate for the names of the configuration, in place of the one that is `shown`, and keeps it in the folder.
pub(super) async fn order(
    config: &AcmeConfig,
    folder: &DataDir,
    challenges: &Challenges,
    shown: Option<&CertificateDer<'_>>,
) -> Result<(), OrderError> {
    // Before the order: the authority counts certificates, and one that cannot be kept is lost.
    keep(folder, ROOM, vec![0; 16 << 10]).await?;
    let _ = tokio::fs::remove_file(folder.join(ROOM)).await; // else it is written anew the next time
    let account = account(config, folder).await?;
    let names: Vec<_> = config.names.iter().cloned().map(Identifier::Dns).collect();
    let replaced = shown.and_then(|shown| CertificateIdentifier::try_from(shown).ok());
    let replacing = match replaced {
        // The authority then knows that the old one needs no more room in its limits (RFC 9773, section 5). It may not know it.
        Some(replaced) => account.new_order(&NewOrder::new(&names).replaces(replaced)).await.ok(),
        None => None,
    };
    let mut order = match replacing {
        Some(order) => order,
        None => account.new_order(&NewOrder::new(&names)).await?,
    };
    let proved = prove(&mut order, challenges).await;
    challenges.forget();
    proved?;
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&VALIDATION).await?;
    keep(folder, CERTIFICATE, format!("{key}{chain}").into_bytes()).await
}

async fn prove(order: &mut Order, challenges: &Challenges) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue; // it was seen lately
        }
        let name = authorization.identifier().to_string();
        let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
            return Err(OrderError::NoWay { name });
        };
        challenges.show(&name, challenge.key_authorization().digest().as_ref())?;
        challenge.set_ready().await.map_err(|error| match error {
            Error::Api(reason) => OrderError::NotSeen { name, reason: reason.to_string() }, // it has looked already
            error => error.into(),
        })?;
    }
    let failed = match order.poll_ready(&VALIDATION).await {
        Ok(OrderStatus::Ready) => return Ok(()),
        Ok(_) => Error::Str("the reason why the order is not ready"),
        Err(error) => error,
    };
    Err(not_seen(order).await?.unwrap_or(OrderError::Authority(failed)))
}

/// The name that the authority did not find to be this server's, and why.
async fn not_seen(order: &mut Order) -> Result<Option<OrderError>, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        authorization.refresh().await?;
        let reason = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(reason) = reason {
            let name = authorization.identifier().to_string();
            return Ok(Some(OrderError::NotSeen { name, reason: reason.to_string() }));
        }
    }
    Ok(None)
}
