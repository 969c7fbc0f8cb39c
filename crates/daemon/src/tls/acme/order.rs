//! One order (RFC 8555, section 7.4): the names are validated, then a certificate is issued.

use super::AcmeConfig;
use super::authority::{Authority, OrderError};
use super::challenge::Challenges;
use crate::http::one_line;
use crate::tls::identity::Shown;
use crate::tls::validity::Validity;
use crate::utc::unix_now;
use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
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
