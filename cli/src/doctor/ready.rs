//! `postern doctor --ready URL`: is a running process ready? For health checks where there is no curl, such as in a
//! container without a shell.

use super::admin::{get, unanswered};
use crate::failure::Failure;
use crate::stdio::print;
use http::StatusCode;

/// Prints the answer of `/readyz`; any status but 200 is a failure.
pub(super) async fn check(admin: &str) -> Result<(), Failure> {
    let url = format!("{}/readyz", admin.trim_end_matches('/'));
    let (status, body) = get(&url, |_| true).await.map_err(|reason| unanswered(&url, reason))?;
    print(String::from_utf8_lossy(&body))?;
    if status == StatusCode::OK {
        return Ok(());
    }
    Err(Failure::runtime(format_args!(
        "{url}: not ready, the answer is {status}: the lines above give the reasons"
    )))
}
