//! `postern doctor --ready URL`: is a running process ready? For health checks where there is no curl, such as in a
//! container without a shell.

use super::{PATIENCE, unanswered};
use crate::failure::Failure;
use postern_daemon::http::{ClientOptions, chain, client, fetch_limited};

/// The most that is read of `/readyz`: it has a line a reason.
const LIMIT: usize = 64 << 10;

/// Prints the answer of `/readyz`; any status but 200 is a failure.
pub(super) async fn check(admin: &str) -> Result<(), Failure> {
    let url = format!("{}/readyz", admin.trim_end_matches('/'));
    let failed = |reason: String| unanswered(&url, reason);
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let client = client(&options).map_err(|error| failed(error.to_string()))?;
    let answer = client.get(&url).send().await.map_err(|error| failed(chain(&error)))?;
    let status = answer.status();
    let body = fetch_limited(answer, LIMIT).await.map_err(|error| failed(error.to_string()))?;
    print!("{}", String::from_utf8_lossy(&body));
    if status.as_u16() == 200 {
        return Ok(());
    }
    Err(Failure::runtime(format_args!(
        "{url}: not ready, the answer is {status}: the lines above give the reasons"
    )))
}
