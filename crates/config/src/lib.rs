//! Configuration: a TOML file whose values environment variables can override.
//!
//! A daemon's configuration is a struct that derives `Deserialize`, `Serialize` (for the defaults in the
//! reference) and `JsonSchema`; `#[serde(default)]` makes a section optional. The schema provides all names: the
//! existing keys, the nearest known key, the environment variable of each value, and the text of [`reference()`].
//! A field may describe what it accepts with `#[schemars(extend("x-accepted" = "a port, such as 443"))]`.
//!
//! The variable of `[store.memcached] addresses` is `POSTERN_STORE_MEMCACHED_ADDRESSES`. It holds a TOML value
//! (`["127.0.0.1:5000"]`, `true`, `10`), or the bare text where a string is expected. Keys inside lists of tables and
//! inside maps have no variable. `environment` handles `POSTERN_` variables that name no key.
//!
//! ```
//! use postern_config::{Size, ConfigDuration, parse};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Limits {
//!     header_timeout: ConfigDuration,
//!     header_size: Size,
//! }
//!
//! let text = "header_timeout = \"10s\"\nheader_size = \"16KiB\"";
//! let limits: Limits = parse("limits.toml", text, []).unwrap();
//! assert_eq!((limits.header_timeout.get().as_secs(), limits.header_size.0), (10, 16 * 1024));
//!
//! let refused = parse::<Limits>("limits.toml", "header_timout = \"10s\"", []).err().unwrap();
//! assert!(refused.to_string().contains("did you mean \"header_timeout\"?"));
//! ```

pub mod address;
mod document;
mod environment;
mod load;
mod reference;
mod reload;
mod schema;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod text;
mod units;

pub use address::Address;
pub use document::{ConfigError, Fit, fit};
pub use environment::{Environment, variables};
pub use load::{load, parse};
pub use reference::reference;
pub use reload::{ConfigFile, Fixed, Reading, differ, open};
pub use units::{ConfigDuration, Secret, Size};
