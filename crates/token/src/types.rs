//! Which token types are in use.

use crate::ids::TokenType;

/// One token type at least, each once, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTypes([Option<TokenType>; TokenType::ISSUED.len()]);

impl TokenTypes {
    /// Type 2 alone.
    pub const PUBLIC: Self = Self([Some(TokenType::BlindRsa2048), None, None]);

    /// The types with these code points. Nothing for an empty list, one with a type twice, or one with a type that is not
    /// [issued](TokenType::ISSUED).
    #[must_use]
    pub fn new(codes: &[u16]) -> Option<Self> {
        let mut types = Self([None; TokenType::ISSUED.len()]);
        for (index, code) in codes.iter().enumerate() {
            let token_type = TokenType::from_code(*code);
            let is_fit = TokenType::ISSUED.contains(&token_type) && !codes[..index].contains(code);
            *types.0.get_mut(index)? = is_fit.then_some(token_type);
            types.0[index]?;
        }
        types.0[0].map(|_| types)
    }

    /// The types, the preferred one first.
    pub fn iter(self) -> impl Iterator<Item = TokenType> {
        self.0.into_iter().flatten()
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, token_type: TokenType) -> bool {
        self.0.contains(&Some(token_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_listed_once_and_can_be_issued() {
        let listed = |codes: &[u16]| {
            TokenTypes::new(codes).map(|types| types.iter().map(TokenType::code).collect::<Vec<_>>())
        };
        for good in [&[2][..], &[5], &[5, 2], &[1, 5, 2]] {
            assert_eq!(listed(good).as_deref(), Some(good));
        }
        for bad in [&[][..], &[2, 2], &[3], &[2, 0xDA7A], &[1, 2, 5, 2], &[0]] {
            assert_eq!(listed(bad), None, "{bad:?}");
        }
        assert!(TokenTypes::PUBLIC.contains(TokenType::BlindRsa2048));
        assert!(!TokenTypes::PUBLIC.contains(TokenType::VoprfP384));
    }
}
