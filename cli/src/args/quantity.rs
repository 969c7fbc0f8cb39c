//! Rates and bandwidths with their units, as arguments have them.

/// "10000", "50k", "1M", with or without "/s".
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).trim();
    let digits = number.trim_end_matches(['k', 'M']);
    let factor = match &number[digits.len()..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        _ => 0.0,
    };
    let value = digits.parse::<u64>().map_or(0.0, |whole| whole as f64 * factor);
    if (1.0..=1e9).contains(&value) {
        return Ok(value);
    }
    Err("a whole number a second from 1 to 1000M, such as \"10000\", \"50k\" or \"1M/s\"".to_owned())
}

/// "10Gbit", "2500Mbit".
pub(super) fn bandwidth(text: &str) -> Result<f64, String> {
    let wrong = || "a bandwidth such as \"10Gbit\" or \"2500Mbit\"".to_owned();
    let (digits, factor) = match (text.strip_suffix("Gbit"), text.strip_suffix("Mbit")) {
        (Some(digits), _) => (digits, 1e9),
        (_, Some(digits)) => (digits, 1e6),
        _ => return Err(wrong()),
    };
    let number: u32 = digits.trim().parse().map_err(|_| wrong())?;
    if number == 0 { Err(wrong()) } else { Ok(f64::from(number) * factor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_bandwidths_are_read_with_their_units() {
        for (text, value) in
            [("1", 1.0), ("10000", 1e4), ("50k", 5e4), ("1M", 1e6), ("1M/s", 1e6), ("1000M", 1e9)]
        {
            assert_eq!(rate(text), Ok(value), "{text}");
        }
        for text in ["", "0", "-1", "1.5M", "1G", "kM", "1001M", "99999999999999999999", "1kk", "M"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(bandwidth("10Gbit"), Ok(1e10));
        assert_eq!(bandwidth("2500Mbit"), Ok(2.5e9));
        for text in ["10", "0Gbit", "10GB", "-1Gbit", "Gbit"] {
            assert!(bandwidth(text).is_err(), "{text}");
        }
    }
}
