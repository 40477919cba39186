//! Floating point that must agree with another implementation to the last bit.

use std::sync::LazyLock;

/// The natural logarithm as Go's `math.Log` computes it on amd64, bit for bit.
///
/// The platform's logarithm is at times one unit in the last place away, which is enough to turn a score
/// around. One quirk comes along: the mantissa of a subnormal number is not normalized first, so its
/// logarithm is wrong by up to 36.
pub fn go_ln(x: f64) -> f64 {
    const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    // The odd and even terms of the series in s^2 are summed apart.
    const ODD: [f64; 4] = [
        f64::from_bits(0x3fe5_5555_5555_5593),
        f64::from_bits(0x3fd2_4924_9422_9359),
        f64::from_bits(0x3fc7_4664_96cb_03de),
        f64::from_bits(0x3fc2_f112_df3e_5244),
    ];
    const EVEN: [f64; 3] = [
        f64::from_bits(0x3fd9_9999_9997_fa04),
        f64::from_bits(0x3fcc_71c5_1d8e_78af),
        f64::from_bits(0x3fc3_9a09_d078_c69f),
    ];

    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_sign_negative() {
        return f64::from_bits(0x7ff8_0000_0000_0001);
    }
    if !x.is_finite() {
        return x;
    }
    let (fraction, exponent) = split(x);
    let f = fraction - 1.0;
    let s = f / (f + 2.0);
    let s2 = s * s;
    let s4 = s2 * s2;
    let odd = s2 * (ODD[0] + s4 * (ODD[1] + s4 * (ODD[2] + s4 * ODD[3])));
    let even = s4 * (EVEN[0] + s4 * (EVEN[1] + s4 * EVEN[2]));
    let half_square = 0.5 * f * f;
    let tail = s * (half_square + (odd + even)) + exponent * LN2_LO;
    exponent * LN2_HI - ((half_square - tail) - f)
}

/// As many logarithms are kept: those of the numbers of nodes that most clusters have.
const N_KEPT: u32 = 1 << 13;

/// [`go_ln`] of a whole number. Those of small numbers are computed once, all at the first use.
pub fn go_ln_of(n: usize) -> f64 {
    static SMALL: LazyLock<Vec<f64>> =
        LazyLock::new(|| (0..N_KEPT).map(|n| go_ln(f64::from(n))).collect());
    SMALL.get(n).copied().unwrap_or_else(|| go_ln(n as f64))
}

/// `x` as a fraction between the square roots of 1/2 and 2, and the power of two it is multiplied with.
fn split(x: f64) -> (f64, f64) {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let fraction = f64::from_bits((bits & MANTISSA) | 0.5f64.to_bits());
    let exponent = ((bits >> 52) & 0x7ff) as f64 - 1022.0;
    if fraction <= std::f64::consts::FRAC_1_SQRT_2 {
        (fraction * 2.0, exponent - 1.0)
    } else {
        (fraction, exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::{go_ln, go_ln_of};

    /// Bits of `x` and of Go's `math.Log(x)`.
    #[rustfmt::skip]
    const RECORDED: [(u64, u64); 64] = [
        // Zeros, negatives, infinities, not-a-number, subnormals, bounds.
        (0x0000_0000_0000_0000, 0xfff0_0000_0000_0000),
        (0x8000_0000_0000_0000, 0xfff0_0000_0000_0000),
        (0xbff0_0000_0000_0000, 0x7ff8_0000_0000_0001),
        (0x7ff0_0000_0000_0000, 0x7ff0_0000_0000_0000),
        (0xfff0_0000_0000_0000, 0x7ff8_0000_0000_0001),
        (0x7ff8_0000_0000_0000, 0x7ff8_0000_0000_0000),
        (0xfff8_0000_0000_0000, 0x7ff8_0000_0000_0001),
        (0x0000_0000_0000_0001, 0xc086_28b7_6e3a_7b61),
        (0x000f_ffff_ffff_ffff, 0xc086_232b_dd7a_bcd2),
        (0x0010_0000_0000_0000, 0xc086_232b_dd7a_bcd2),
        (0x7fef_ffff_ffff_ffff, 0x4086_2e42_fefa_39ef),
        (0x3fe6_a09e_667f_3bcd, 0xbfd6_2e42_fefa_39ee),
        (0x3fe6_a09e_667f_3bcc, 0xbfd6_2e42_fefa_39f1),
        (0x3fe6_a09e_667f_3bce, 0xbfd6_2e42_fefa_39eb),
        (0x3fe0_0000_0000_0000, 0xbfe6_2e42_fefa_39ef),
        (0x3fb9_9999_9999_999a, 0xc002_6bb1_bbb5_5515),
        (0x3ff8_0000_0000_0000, 0x3fd9_f323_ecbf_984c),
        (0x4009_21fb_5444_2d18, 0x3ff2_50d0_48e7_a1bd),
        (0x7e37_e43c_8800_759c, 0x4085_9634_47f8_7fb5),
        (0x01a5_6e1f_c2f8_f359, 0xc085_9634_47f8_7fb5),
        // The first integers on which platforms differ: 3, 14, 48, 74, 176, 196, ...
        (0x4008_0000_0000_0000, 0x3ff1_93ea_7aad_030a),
        (0x402c_0000_0000_0000, 0x4005_1cca_16d7_bba8),
        (0x4048_0000_0000_0000, 0x400e_f838_3c50_bb74),
        (0x4052_8000_0000_0000, 0x4011_375c_d6fc_ab1c),
        (0x4066_0000_0000_0000, 0x4014_ae93_5b3c_b89e),
        (0x4068_8000_0000_0000, 0x4015_1cca_16d7_bba8),
        (0x406b_8000_0000_0000, 0x4015_9313_1979_8d6e),
        (0x4072_b000_0000_0000, 0x4016_cd41_1481_a020),
        (0x4073_4000_0000_0000, 0x4016_eb9f_470a_c0b8),
        (0x4074_e000_0000_0000, 0x4017_3e9b_be95_1e9c),
        (0x4075_7000_0000_0000, 0x4017_59d6_02a5_c3c2),
        (0x4075_a000_0000_0000, 0x4017_62c0_d8a3_c1c4),
        (0x4076_a000_0000_0000, 0x4017_910b_2e25_d668),
        (0x4084_8800_0000_0000, 0x4019_f363_7078_b16c),
        (0x4084_a800_0000_0000, 0x4019_f99a_9b49_bfea),
        (0x4087_b800_0000_0000, 0x401a_872b_7953_b660),
        (0x4089_a000_0000_0000, 0x401a_d653_e081_47f0),
        (0x408a_9000_0000_0000, 0x401a_fb1f_3cd3_4d94),
        (0x408a_d800_0000_0000, 0x401b_05e8_49cd_05b0),
        (0x408b_f000_0000_0000, 0x401b_2ecd_7ea6_6f2e),
        (0x408d_4000_0000_0000, 0x401b_5dd0_728d_1d68),
        (0x4090_e000_0000_0000, 0x401b_f059_799a_fb4e),
        (0x4091_3800_0000_0000, 0x401c_04ff_c8c8_9fe4),
        (0x4092_9800_0000_0000, 0x401c_53ab_6a64_80de),
        (0x4093_b400_0000_0000, 0x401c_8f03_1e7e_1220),
        (0x4095_8400_0000_0000, 0x401c_e920_5baa_42c8),
        (0x4096_0c00_0000_0000, 0x401d_021a_6e60_243e),
        (0x4096_cc00_0000_0000, 0x401d_245b_d422_cbfc),
        (0x4097_a000_0000_0000, 0x401d_48e5_a72c_2e98),
        (0x4098_b400_0000_0000, 0x401d_7697_a3f1_162c),
        (0x4098_f000_0000_0000, 0x401d_8043_0cf8_bf6a),
        (0x409a_b000_0000_0000, 0x401d_c5b6_565d_911e),
        (0x409b_2000_0000_0000, 0x401d_d65c_ef73_01fc),
        (0x409c_1c00_0000_0000, 0x401d_fadd_abdb_26a6),
        (0x409c_5000_0000_0000, 0x401e_023d_2ca1_cf92),
        (0x409f_6400_0000_0000, 0x401e_6beb_f9e0_8352),
        (0x40a1_5c00_0000_0000, 0x401e_d31c_62ba_9d14),
        (0x40a1_ba00_0000_0000, 0x401e_e88b_74e4_ecf2),
        (0x40a2_0000_0000_0000, 0x401e_f838_3c50_bb74),
        (0x40a3_1a00_0000_0000, 0x401f_350b_2a20_798a),
        (0x40a3_8c00_0000_0000, 0x401f_4ca4_594c_d3d6),
        (0x40a3_ae00_0000_0000, 0x401f_5393_7ab2_e468),
        (0x40a3_c000_0000_0000, 0x401f_573a_690c_15a8),
        (0x40a4_6e00_0000_0000, 0x401f_79e0_3726_9d4e),
    ];

    #[test]
    fn whole_numbers_have_the_same_logarithm_as_other_numbers() {
        for n in [0, 1, 2, 5, 8_191, 8_192, 1_000_002] {
            assert_eq!(go_ln_of(n).to_bits(), go_ln(n as f64).to_bits(), "{n}");
        }
    }

    #[test]
    fn recorded_values_are_bit_identical() {
        for (x, want) in RECORDED {
            let got = go_ln(f64::from_bits(x)).to_bits();
            assert_eq!(got, want, "ln {:e}: got {got:#x}, want {want:#x}", f64::from_bits(x));
        }
    }

    #[test]
    fn the_first_hundred_thousand_integers_agree() {
        let mut sum = 0xcbf2_9ce4_8422_2325_u64;
        for n in 1..=100_000_u32 {
            sum = (sum ^ go_ln(f64::from(n)).to_bits()).wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(sum, 0x2cbd_7df5_683c_2f32);
    }
}
