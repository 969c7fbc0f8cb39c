//! Every refusal, with the operations that answer with it: what the document must contain.

use crate::accounts::{NoAccount, NoToken};
use crate::answer::Refusal;
use crate::issue::asked::Form;
use crate::keyring::NoKey;
use crate::quota::Spent;
use crate::signing::Unsigned;
use postern_daemon::places::NoPlace;
use postern_daemon::rates::AboveRate;
use postern_daemon::serve::TurnedAway;
use postern_token::{SignError, TokenType, Unavailable, WireError};
use std::time::Duration;

const SPENT: Spent = Spent { retry_after: Duration::from_secs(3_600) };

/// The operations that answer with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Every path.
    All,
    /// The paths of documents: the key directory and the API description.
    Documents,
    /// The path of token requests.
    Requests,
}

impl At {
    pub(super) fn includes(self, place: Self) -> bool {
        self == Self::All || self == place
    }
}

/// A refusal, with values as a client may read them.
#[derive(Clone, Debug)]
pub(super) struct Example {
    pub(super) name: &'static str,
    pub(super) at: At,
    pub(super) refusal: Refusal,
}

/// Makes the list of examples, and a match over the same patterns: a refusal without a row does not compile.
macro_rules! examples {
    ($($pattern:pat => [$($name:literal $at:ident $refusal:expr),*];)+) => {
        pub(super) fn examples() -> Vec<Example> {
            vec![$($(Example { name: $name, at: At::$at, refusal: $refusal },)*)+]
        }

        const _: fn(&Refusal) = |refusal| match refusal {
            $($pattern => {})+
        };

        pub(super) fn is_of_its_row(example: &Example) -> bool {
            match example.name {
                $($($name => matches!(example.refusal, $pattern),)*)+
                _ => false,
            }
        }
    };
}

examples! {
    Refusal::NotFound => ["path" Requests Refusal::NotFound];
    Refusal::Method(_) => [
        "method_of_document" Documents Refusal::Method("GET, HEAD"),
        "method_of_request" Requests Refusal::Method("POST")
    ];
    Refusal::ByName => ["host_name" All Refusal::ByName];
    Refusal::Ambiguous(_) => ["host_field" All Refusal::Ambiguous("does not have exactly one Host field")];
    Refusal::TooLong(..) => [
        "too_long" Requests Refusal::TooLong(Form::One, 100),
        "too_long_batch" Requests Refusal::TooLong(Form::Generic, 100)
    ];
    Refusal::TooSlow => ["slow_body" Requests Refusal::TooSlow];
    Refusal::Broken => ["broken_body" Requests Refusal::Broken];
    Refusal::MediaType => ["media_type" Requests Refusal::MediaType];
    Refusal::NoAccount(NoAccount::Missing) => ["no_key" Requests Refusal::NoAccount(NoAccount::Missing)];
    Refusal::NoAccount(NoAccount::Unknown) => ["unknown_key" Requests Refusal::NoAccount(NoAccount::Unknown)];
    Refusal::NoAccount(NoAccount::Damaged) => ["damaged_key" Requests Refusal::NoAccount(NoAccount::Damaged)];
    Refusal::NoAccount(NoAccount::Retired) => ["retired_key" Requests Refusal::NoAccount(NoAccount::Retired)];
    Refusal::NoAccount(NoAccount::Disabled) => ["disabled" Requests Refusal::NoAccount(NoAccount::Disabled)];
    Refusal::NoAccount(NoAccount::Expired) => ["expired" Requests Refusal::NoAccount(NoAccount::Expired)];
    Refusal::NoAccount(NoAccount::NoTier) => ["no_terms" Requests Refusal::NoAccount(NoAccount::NoTier)];
    Refusal::NoAccount(NoAccount::StrangeCertificate) => [
        "unknown_certificate" Requests Refusal::NoAccount(NoAccount::StrangeCertificate)
    ];
    Refusal::NoAccount(NoAccount::Contradiction) => [
        "two_accounts" Requests Refusal::NoAccount(NoAccount::Contradiction)
    ];
    Refusal::NoAccount(NoAccount::Denied(_)) => [
        "denied_key" Requests Refusal::NoAccount(NoAccount::Denied(Some("the subscription has ended".into())))
    ];
    Refusal::NoAccount(NoAccount::Unanswered) => [
        "no_authorizer" Requests Refusal::NoAccount(NoAccount::Unanswered)
    ];
    Refusal::NoAccount(NoAccount::Crowded) => [
        "crowded_authorizer" Requests Refusal::NoAccount(NoAccount::Crowded)
    ];
    Refusal::NoAccount(NoAccount::Unreadable) => [
        "no_accounts" Requests Refusal::NoAccount(NoAccount::Unreadable)
    ];
    Refusal::Malformed(..) => [
        "malformed" Requests Refusal::Malformed(Form::One, trailing()),
        "malformed_batch" Requests Refusal::Malformed(Form::Amortized, trailing())
    ];
    Refusal::BatchTooLarge { .. } => ["large_batch" Requests Refusal::BatchTooLarge { limit: 100 }];
    Refusal::TooFewLeft { .. } => ["few_left" Requests Refusal::TooFewLeft { left: 7 }];
    Refusal::NoneOfBatch(_) => [
        "none_of_batch" Requests Refusal::NoneOfBatch(Box::new(Refusal::NoKey(NoKey::Unknown)))
    ];
    Refusal::NoKey(NoKey::Type(_)) => [
        "token_type" Requests Refusal::NoKey(NoKey::Type(TokenType::VoprfP384))
    ];
    Refusal::NoKey(NoKey::Unknown) => ["unknown_token_key" Requests Refusal::NoKey(NoKey::Unknown)];
    Refusal::NoKey(NoKey::Retired) => ["retired_token_key" Requests Refusal::NoKey(NoKey::Retired)];
    Refusal::NoKey(NoKey::Absent) => [
        "no_token_key" Requests Refusal::NoKey(NoKey::Absent),
        "no_token_keys" Documents Refusal::NoKey(NoKey::Absent)
    ];
    Refusal::NoKey(NoKey::NotYet) => ["upcoming_token_key" Requests Refusal::NoKey(NoKey::NotYet)];
    Refusal::NoToken(NoToken::Spent(_)) => [
        "quota" Requests Refusal::NoToken(NoToken::Spent(SPENT))
    ];
    Refusal::NoToken(NoToken::TooFast { .. }) => [
        "rate" Requests Refusal::NoToken(NoToken::TooFast { retry_after: Duration::ZERO })
    ];
    Refusal::NoToken(NoToken::Unrecorded) => ["no_record" Requests Refusal::NoToken(NoToken::Unrecorded)];
    Refusal::Unsigned(Unsigned::Full) => ["busy" Requests Refusal::Unsigned(Unsigned::Full)];
    Refusal::Unsigned(Unsigned::Crowded) => ["busy_with_yours" Requests Refusal::Unsigned(Unsigned::Crowded)];
    Refusal::Unsigned(Unsigned::Refused(SignError::OutOfRange)) => [
        "out_of_range" Requests Refusal::Unsigned(Unsigned::Refused(SignError::OutOfRange))
    ];
    Refusal::Unsigned(Unsigned::Refused(SignError::NotAnElement)) => [
        "no_element" Requests Refusal::Unsigned(Unsigned::Refused(SignError::NotAnElement))
    ];
    Refusal::Unsigned(Unsigned::Refused(SignError::Key(_) | SignError::Unavailable(_) | SignError::WrongResult)) => [
        "no_signer" Requests Refusal::Unsigned(Unsigned::Refused(SignError::Unavailable(Unavailable)))
    ];
    Refusal::Unsigned(Unsigned::Refused(_) | Unsigned::Failed) => [
        "failed" Requests Refusal::Unsigned(Unsigned::Failed)
    ];
    Refusal::TurnedAway(TurnedAway::NoPlace(NoPlace::Source)) => [
        "connections" All Refusal::TurnedAway(TurnedAway::NoPlace(NoPlace::Source))
    ];
    Refusal::TurnedAway(TurnedAway::Refusals(_)) => [
        "refusals" All Refusal::TurnedAway(TurnedAway::Refusals(AboveRate { seconds: 3 }))
    ];
    Refusal::TurnedAway(TurnedAway::Displaced) => [
        "displaced" All Refusal::TurnedAway(TurnedAway::Displaced)
    ];
    Refusal::TurnedAway(TurnedAway::NoPlace(NoPlace::Full)) => [
        "full" All Refusal::TurnedAway(TurnedAway::NoPlace(NoPlace::Full))
    ];
    // The connection is closed before a request.
    Refusal::TurnedAway(TurnedAway::Handshakes | TurnedAway::Certificate | TurnedAway::HeaderTimeout) => [];
    // These bytes are no request of HTTP/1.1.
    Refusal::TurnedAway(TurnedAway::Malformed | TurnedAway::HeaderTooLarge) => [];
}

fn trailing() -> WireError {
    WireError::Trailing { offset: 259, extra: 1 }
}
