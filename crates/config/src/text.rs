//! Types that a configuration writes as strings.

#[doc(hidden)]
pub use {schemars, serde};

/// Implements `Serialize`, `Deserialize` and `JsonSchema` for a type that is a string in files: its `FromStr` reads it, its
/// `Display` writes it, and `$accepted` describes it in the reference and in errors. Further keys are added to the schema as they
/// are.
#[macro_export]
macro_rules! text_value {
    ($type:ident, $accepted:expr $(, $key:literal: $value:expr)* $(,)?) => {
        impl $crate::text::serde::Serialize for $type {
            fn serialize<S: $crate::text::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::text::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::text::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as $crate::text::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(<D::Error as $crate::text::serde::de::Error>::custom)
            }
        }

        impl $crate::text::schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut $crate::text::schemars::SchemaGenerator) -> $crate::text::schemars::Schema {
                $crate::text::schemars::json_schema!({ "type": "string", "x-accepted": $accepted $(, $key: $value)* })
            }
        }
    };
}
