//! What is served on the public address, as an OpenAPI document: `issuer/openapi.json`, and the same with the configured
//! path at [`OPENAPI_PATH`].
//!
//! It is served on the public address, not on the admin one, because those who write clients reach only the former. It tells a
//! stranger nothing that the source and the key directory do not: no version of the program, no address, no account.
//!
//! The refusals come from the table of `answer`: `refusals` has an example of every one.

mod refusals;
#[cfg(test)]
mod tests;

use crate::StartError;
use crate::config::Config;
use postern_token::{
    AMORTIZED_REQUEST_MEDIA_TYPE, AMORTIZED_RESPONSE_MEDIA_TYPE, DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH,
    GENERIC_REQUEST_MEDIA_TYPE, GENERIC_RESPONSE_MEDIA_TYPE, REQUEST_LEN, REQUEST_MEDIA_TYPE,
    RESPONSE_MEDIA_TYPE,
};
use refusals::{At, Example, examples};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{
    OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem, PathItemBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Components, ComponentsBuilder, KnownFormat, SchemaFormat};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::server::Server;
use utoipa::openapi::{
    ArrayBuilder, Content, ContentBuilder, Header, HttpMethod, InfoBuilder, Object, ObjectBuilder, OpenApi,
    OpenApiBuilder, PathsBuilder, Ref, Required, Response, ResponseBuilder, Type, example,
};

/// Where the document is served.
pub(crate) const OPENAPI_PATH: &str = "/openapi.json";
/// What tools expect, and browsers show.
pub(crate) const MEDIA_TYPE: &str = "application/json";
/// How long a copy may be kept. It changes with a reload or an upgrade.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(3_600);

/// The version of the interface: a client of another major version has to be changed.
const VERSION: &str = "1.0.0";
const INTRODUCTION: &str = "\
The keys of a Privacy Pass issuer, and blinded tokens for accounts (RFC 9578, draft-ietf-privacypass-batched-tokens-09).

Token requests and their answers are binary: the RFC and the draft have their structure, this document their media types and sizes. \
Every refusal is plain text that says what was wrong and what to do; the examples are all that there are.

Read the path of token requests from the key directory: an operator may change it. Directory and description are for everyone. \
Tokens are for accounts, except at an issuer without any, which serves its own machine alone.";
const API_KEY: &str = "apiKey";
const CERTIFICATE: &str = "clientCertificate";
const DIRECTORY_SCHEMA: &str = "Directory";
const TOKEN_KEY_SCHEMA: &str = "TokenKey";

/// The document of an issuer with this configuration, as it is served. It has the path of token requests that the directory
/// names now; those from before a reload are served on, for kept copies of the directory.
///
/// # Errors
/// `[directory] issuer_request_uri` is not one that an issuer starts with.
pub fn openapi(config: &Config) -> Result<String, StartError> {
    let path = config.directory.path()?;
    let document = document(&path, origin(&config.directory.issuer_request_uri));
    let json = document.to_pretty_json().expect("strings, numbers and lists: JSON can represent them");
    Ok(json + "\n")
}

/// Where token requests go, if that is another name than the directory's.
fn origin(request_uri: &str) -> Option<String> {
    let uri: http::Uri = request_uri.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

/// `requests` is the path of token requests, at `origin` where that is another than the directory's.
fn document(requests: &str, origin: Option<String>) -> OpenApi {
    let paths = PathsBuilder::new()
        .path(DIRECTORY_PATH, directory())
        .path(OPENAPI_PATH, description())
        .path(requests, token_request(origin));
    OpenApiBuilder::new()
        .info(InfoBuilder::new().title("Postern issuer").version(VERSION).description(Some(INTRODUCTION)))
        .paths(paths)
        .components(Some(components()))
        .build()
}

// ---- Paths ----

fn directory() -> PathItem {
    let schema = Ref::from_schema_name(DIRECTORY_SCHEMA);
    let content = ContentBuilder::new().schema(Some(schema)).build();
    read("KeyDirectory", "The issuer's keys, and where to request tokens", (DIRECTORY_MEDIA_TYPE, content))
}

fn description() -> PathItem {
    let content = ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::Object))).build();
    read("ApiDescription", "This document", (MEDIA_TYPE, content))
}

/// GET and HEAD of a document that clients keep.
fn read(name: &str, summary: &str, (media_type, content): (&str, Content)) -> PathItem {
    let operation = |verb: &str, found: Response| {
        let known = kept(ResponseBuilder::new().description("The client has it already."));
        let mut operation = OperationBuilder::new()
            .operation_id(Some(format!("{verb}{name}")))
            .summary(Some(summary))
            .parameter(if_none_match())
            .response("200", found)
            .response("304", known)
            .response("431", large_header());
        for status in refused(At::Documents).into_keys() {
            operation = operation.response(status.to_string(), Ref::from_response_name(component(status)));
        }
        operation
    };
    let found = || kept(ResponseBuilder::new().description("The document. With HEAD without its bytes."));
    let mut with_content = found();
    with_content.content.insert(media_type.to_owned(), content.into());
    PathItemBuilder::new()
        .operation(HttpMethod::Get, operation("get", with_content))
        .operation(HttpMethod::Head, operation("head", found()))
        .build()
}

fn kept(response: ResponseBuilder) -> Response {
    let (etag, cache) = ("\"5f0c2a91d3b7e6480a1c9e2f7b3d5a60\"", "public, max-age=3600");
    response
        .header("ETag", header("For If-None-Match. It changes with the document.", Type::String, etag, true))
        .header("Cache-Control", header("How long a copy may be kept.", Type::String, cache, true))
        .build()
}

fn if_none_match() -> Parameter {
    ParameterBuilder::new()
        .name("If-None-Match")
        .parameter_in(ParameterIn::Header)
        .description(Some("The ETag of the copy that the client has: the answer is 304 while it is good."))
        .required(Required::False)
        .schema(Some(string()))
        .build()
}

fn token_request(origin: Option<String>) -> PathItem {
    let bodies = RequestBodyBuilder::new()
        .description(Some(
            "A TokenRequest (RFC 9578, sections 5.1 and 6.1): 259 bytes for type 2, 52 for type 1, 35 for type 5. Or a batch of \
             as many tokens at most as `batch-limit` of the key directory says (the draft, sections 5.1 and 6.1).",
        ))
        .required(Some(Required::True))
        .content(REQUEST_MEDIA_TYPE, binary(Some((SHORTEST_REQUEST, REQUEST_LEN))))
        .content(AMORTIZED_REQUEST_MEDIA_TYPE, binary(None))
        .content(GENERIC_REQUEST_MEDIA_TYPE, binary(None))
        .build();
    let issued = ResponseBuilder::new()
        .description("All tokens that were requested, in the form of the request.")
        .content(RESPONSE_MEDIA_TYPE, binary(None))
        .content(AMORTIZED_RESPONSE_MEDIA_TYPE, binary(None))
        .content(GENERIC_RESPONSE_MEDIA_TYPE, binary(None));
    let some = ResponseBuilder::new()
        .description("Some tokens of a generic batch; those that are not issued are absent.")
        .content(GENERIC_RESPONSE_MEDIA_TYPE, binary(None));
    let mut operation = OperationBuilder::new()
        .operation_id(Some("requestTokens"))
        .summary(Some("Blinded tokens, one or a batch"))
        .request_body(Some(bodies))
        .security(SecurityRequirement::new(API_KEY, [""; 0]))
        .security(SecurityRequirement::new(CERTIFICATE, [""; 0]))
        .response("200", issued)
        .response("206", some)
        .response("431", large_header());
    for (status, refusals) in refused(At::Requests) {
        operation = operation.response(status.to_string(), refusal(status, &refusals));
    }
    let path = PathItemBuilder::new().operation(HttpMethod::Post, operation);
    path.servers(origin.map(|origin| [Server::new(origin)])).build()
}

/// A request of type 5, in bytes.
const SHORTEST_REQUEST: usize = 35;

/// Bytes as they are, with the least and the greatest length. `format: binary` is what generators and testers know them by.
fn binary(length: Option<(usize, usize)>) -> Content {
    let (shortest, longest) = length.unzip();
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
        .min_length(shortest)
        .max_length(longest);
    ContentBuilder::new().schema(Some(schema)).build()
}

// ---- Refusals ----

/// What is answered at `place` in place of what was requested, by status.
fn refused(place: At) -> BTreeMap<u16, Vec<Example>> {
    let mut by_status = BTreeMap::<u16, Vec<Example>>::new();
    for example in examples().into_iter().filter(|example| example.at.includes(place)) {
        by_status.entry(example.refusal.status().0.as_u16()).or_default().push(example);
    }
    by_status
}

fn refusal(status: u16, refusals: &[Example]) -> Response {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let texts = refusals.iter().map(|Example { name, refusal, .. }| {
        let text = example::ExampleBuilder::new().value(Some(Value::String(refusal.sentence() + "\n")));
        (*name, text.build())
    });
    let content = ContentBuilder::new().schema(Some(string())).examples_from_iter(texts).build();
    let mut response = ResponseBuilder::new()
        .description(format!("{}. The body says why, and what to do.", reason.unwrap_or("Refused")))
        .content("text/plain", content);
    let fields: Vec<_> = refusals.iter().filter_map(|example| example.refusal.field()).collect();
    let always = fields.len() == refusals.len();
    for (name, value) in fields {
        let value = value.to_str().unwrap_or_default();
        let (name, description, of) = match name.as_str() {
            "retry-after" => ("Retry-After", "How many seconds to wait before the next try.", Type::Integer),
            "allow" => ("Allow", "The methods of this path.", Type::String),
            _ => ("WWW-Authenticate", "The scheme to authenticate with.", Type::String),
        };
        response = response.header(name, header(description, of, value, always));
    }
    response.build()
}

/// hyper answers it, before there is a request to refuse.
fn large_header() -> Response {
    Response::new("The header of the request is longer than the issuer reads. There is no body.")
}

// ---- Components ----

fn component(status: u16) -> String {
    format!("Document{status}")
}

fn components() -> Components {
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The API key that the issuer's operator gave out: `Authorization: Bearer KEY`."));
    let certificate = SecurityScheme::MutualTls {
        description: Some("A client certificate that the operator has added to the account.".to_owned()),
        deprecated: None,
        extensions: None,
    };
    let shared = refused(At::Documents)
        .into_iter()
        .map(|(status, refusals)| (component(status), refusal(status, &refusals)));
    ComponentsBuilder::new()
        .security_scheme(API_KEY, SecurityScheme::Http(key.build()))
        .security_scheme(CERTIFICATE, certificate)
        .responses_from_iter(shared)
        .schema(DIRECTORY_SCHEMA, directory_schema())
        .schema(TOKEN_KEY_SCHEMA, token_key_schema())
        .build()
}

fn directory_schema() -> Object {
    let uri = string_of("Where to POST token requests: absolute, or relative to the directory's URL.");
    let keys = ArrayBuilder::new()
        .items(Ref::from_schema_name(TOKEN_KEY_SCHEMA))
        .description(Some("In order of preference; of each type the one to use now comes first."));
    let limit = integer_of("The most tokens of one batch. Not in the RFC.");
    ObjectBuilder::new()
        .description(Some("RFC 9578, section 4. Clients pass over members that they do not know."))
        .property("issuer-request-uri", uri)
        .required("issuer-request-uri")
        .property("token-keys", keys)
        .required("token-keys")
        .property("batch-limit", limit)
        .build()
}

fn token_key_schema() -> Object {
    ObjectBuilder::new()
        .property("token-type", integer_of("2 (blind RSA), 5 (ristretto255) or 1 (P-384)."))
        .required("token-type")
        .property("token-key", string_of("The public key, in base64url."))
        .required("token-key")
        .property("not-before", integer_of("When it comes into use, as a Unix time."))
        .property("not-after", integer_of("When its tokens end, as a Unix time. Not in the RFC."))
        .build()
}

fn string() -> Object {
    Object::with_type(Type::String)
}

fn string_of(description: &str) -> Object {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description)).build()
}

fn integer_of(description: &str) -> Object {
    let integer = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    integer.description(Some(description)).build()
}

fn header(description: &str, of: Type, example: &str, always: bool) -> Header {
    let header = HeaderBuilder::new()
        .schema(Some(Object::with_type(of)))
        .description(Some(description))
        .example(Some(example.parse::<u64>().map_or_else(|_| example.into(), Value::from)));
    // utoipa's header has no `required`. A map of extensions may hold any member.
    header.extensions(always.then(|| Extensions::from_iter([("required", true)]))).build()
}
