//! The median of figures.

/// The median; the lower one of two middle values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// The median of some figures, divided by that of others.
pub fn ratio_of_medians(ours: Vec<f64>, theirs: Vec<f64>) -> Option<f64> {
    Some(median(ours)? / median(theirs)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |values: &[f64], want| assert_eq!(median(values.to_vec()), want, "{values:?}");
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[3.0, 1.0], Some(1.0));
        check(&[3.0, 1.0, 2.0], Some(2.0));
    }

    #[test]
    fn ratios() {
        assert_eq!(ratio_of_medians(vec![1.0, 6.0, 90.0], vec![3.0]), Some(2.0));
        assert_eq!(ratio_of_medians(vec![], vec![3.0]), None);
        assert_eq!(ratio_of_medians(vec![1.0], vec![]), None);
    }
}
