use std::hash::BuildHasher;

use proptest::prelude::*;

use super::*;

/// Every row was recorded from upstream's `ParseQuantity`: text, `String()`, `Value()`, `MilliValue()`.
const RECORDED: &str = r#"
        "0" 0 0 0
        "1" 1 1 1000
        "100m" 100m 1 100
        "0.1" 100m 1 100
        "1.5" 1500m 2 1500
        "1Ki" 1Ki 1024 1024000
        "1.5Ki" 1536 1536 1536000
        "31.25Ki" 32000 32000 32000000
        "32000" 32k 32000 32000000
        "0.5Mi" 512Ki 524288 524288000
        "1Gi" 1Gi 1073741824 1073741824000
        "1k" 1k 1000 1000000
        "1M" 1M 1000000 1000000000
        "1G" 1G 1000000000 1000000000000
        "1T" 1T 1000000000000 1000000000000000
        "1P" 1P 1000000000000000 1000000000000000000
        "1E" 1E 1000000000000000000 0
        "9E" 9E 9000000000000000000 0
        "10E" 10E 0 0
        "1Pi" 1Pi 1125899906842624 1125899906842624000
        "1Ei" 1Ei 1152921504606846976 -9223372036854775808
        "8Ei" 9223372036854775807 9223372036854775807 -1000
        "100n" 100n 1 1
        "1u" 1u 1 1
        "0.1n" 1n 1 1
        "1.0000000001" 1000000001n 2 1001
        "1e3" 1e3 1000 1000000
        "1E3" 1E3 1000 1000000
        "1e-3" 1e-3 1 1
        "1e6" 1e6 1000000 1000000000
        "12e6" 12e6 12000000 12000000000
        "1.2e6" 1200e3 1200000 1200000000
        "1e-10" 1e-9 1 1
        "1e+3" 1e+3 1000 1000000
        "+5" +5 5 5000
        "-5" -5 -5 -5000
        "-0.1" -100m -1 -100
        "-1.5Gi" -1536Mi -1610612736 -1610612736000
        "1e19" 10e18 0 0
        "9223372036854775807" 9223372036854775807 9223372036854775807 -1000
        "9223372036854775808" 9223372036854775808 -9223372036854775808 0
        "18446744073709551616" 18446744073709551616 0 0
        "999999999999999999999" 999999999999999999999 3875820019684212735 2003764205206895640
        "0.000000001" 1n 1 1
        "1.1Ki" 1126400m 1127 1126400
        "5." 5. 5 5000
        "." 0 0 0
        " 1" ERR
        "1 " ERR
        "1ki" ERR
        "1K" ERR
        "1mi" ERR
        "1e" ERR
        "1E" 1E 1000000000000000000 0
        "" ERR
        "abc" ERR
        "1GiB" ERR
        "--1" ERR
        "1m" 1m 1 1
        "1001m" 1001m 2 1001
        "0.001" 1m 1 1
        "3.3Gi" 3543348019200m 3543348020 3543348019200
        "12345678901234567890m" 12345678901234567890m 12345678901234568 -6101065172474983726
        "1.123456789m" 1123457n 1 2
        "500000u" 500m 1 500
        "1Ti" 1Ti 1099511627776 1099511627776000
        "100e-3" 100e-3 1 100
        "0.30Mi" 314572800m 314573 314572800
        "2048Mi" 2Gi 2147483648 2147483648000
        "1024Gi" 1Ti 1099511627776 1099511627776000
        "4000m" 4 4 4000
        "0.5" 500m 1 500
        "1.5Ei" 1536Pi 1729382256910270464 -4611686018427387904
        "1e-20" 1e-9 1 1
        "1.5n" 2n 1 1
        "1999n" 1999n 1 1
    "#;

/// More of the same, found at random and by reading: odd spellings, ranges left, negative fractions.
const RECORDED_ODD: &str = r#"
        "-" 0 0 0
        "+" 0 0 0
        "k" 0 0 0
        "Ki" 0 0 0
        "Ei" ERR
        "Pi" ERR
        ".Ei" ERR
        "-." 0 0 0
        "e3" 0 0 0
        "0e5" 0 0 0
        "1e-0" 1e-0 1 1000
        "1e0" 1e0 1 1000
        "1e00" 1e00 1 1000
        "1E007" 10e6 10000000 10000000000
        "1000E" 1 0 0
        "1e21" 1e21 0 0
        "007" 007 7 7000
        "0007.500Mi" 7680Ki 7864320 7864320000
        "5.k" 5.k 5000 5000000
        "5.Ki" 5.Ki 5120 5120000
        "1.500" 1.500 2 1500
        "1.500Ki" 1536 1536 1536000
        "-0" 0 0 0
        "0.0" 0 0 0
        "1e-9" 1e-9 1 1
        "1e100" 10e99 0 0
        "1e9223372036854775808" ERR
        "7104600.001180P" 7104600.001180P 2603532801822627840 0
        "88040909.180G" 88040909.180G 88040909180000000 -4192811188547758080
        "410.00340902e17" 410.00340902e17 4106852754580896768 0
        "110945.001116e15" 110945.001116e15 264536673742690304 0
        "0-.07021600M" ERR
        "+9M06360Ti" ERR
        "10105e" ERR
        "0804718.000mi" ERR
        "014.1K" ERR
        ".0000051mi" ERR
        "014060Ki" 014060Ki 14397440 14397440000
        "-0209010660080100041Mi" -9223372036854775807 -9223372036854775807 1000
        "009851008008202Ei" 9223372036854775807 9223372036854775807 -1000
        "40.Mi" 40Mi 41943040 41943040000
        "00452020Pi" 9223372036854775807 9223372036854775807 -1000
        "-141Ki" -141Ki -144384 -144384000
        "-17090000031010Gi" -9223372036854775807 -9223372036854775807 1000
        "4090Gi" 4090Gi 4391604060160 4391604060160000
        "005010078080104159400Gi" 9223372036854775807 9223372036854775807 -1000
        "-61195039.200Pi" -9223372036854775807 -9223372036854775807 1000
        "0179002e-17" 1e-9 1 1
        "02e0017" 200e15 200000000000000000 0
        "000123805013E9" 000123805013E9 123805013000000000 0
        "901111061903109060012e6" 901111061903109060012e6 -8332329077320465664 5599243996251666432
        "66811176519810188150Ei" 9223372036854775807 9223372036854775807 -1000
        "0101000917.34Ei" 9223372036854775807 9223372036854775807 -1000
        "310314E6" 310314E6 310314000000 310314000000000
        "1257E6" 1257E6 1257000000 1257000000000
        "05.E18" 05.E18 5000000000000000000 0
        "0055210E-18" 1e-9 1 1
        "391100015010857G" 391100015010857G -7852839932913362432 0
        "5037000140440010206.100u" 5037000140440010206100n 5037000140441 5037000140440011
        "-041100830000010Pi" -9223372036854775807 -9223372036854775807 1000
        "+00736117783Mi" 736117783Mi 771875440427008 771875440427008000
        "+015.130104Ki" 15493226496u 15494 15493227
        "13.479027010131000E17" 1347902701013100e3 1347902701013100000 0
        "+07800103036020Ti" 9223372036854775807 9223372036854775807 -1000
        "+30411610.0Pi" 9223372036854775807 9223372036854775807 -1000
        "0011200071004.015340001010080P" 11200071004015340001010080 1212454069770494368 -5031039094336038656
        "-70510090009093909.014Mi" -9223372036854775807 -9223372036854775807 1000
        "-202691110400104807006Ei" -9223372036854775807 -9223372036854775807 1000
        "890.52870019Pi" 1002646180584604037608898560n 1002646180584604038 6522000604288250345
        "-000009.060Gi" -9728100925440m 8718643149 8718643148270
        "-64600101100.00902906006002e8" -6460010110000902906006002e-6 4112423595 4112423594382
        "-601.Pi" -601Pi 1729382257 1729382256911
        "-2.19100060897E18" -2191000608970e6 -2191000608970000000 0
        "-.9150809110901E+5" -91508091109010e-9 -91509 -91508092
        "-101.84254317e-18" -1e-9 1 1
        "-.2000" -200m -1 -200
        "-10.008010500616Ei" -9223372036854775807 -9223372036854775807 1000
    "#;

/// Two texts; `String()`, `Value()`, `MilliValue()` of their sum; how they compare. Recorded from upstream.
const RECORDED_SUMS: &str = r#"
        .039k +3541e10 35410000000039 35410000000039 35410000000039000 <
        -7.0506351T 0.113T -6937635100k -6937635100000 -6937635100000000 <
        010650480650 6E+13 60010650480650 60010650480650 60010650480650000 <
        +0.0300T 7.100 30000000007100m 30000000008 30000000007100 >
        909n 7E19 70000000000000000000000000909n -3786976294838206463 -5393759727748382719 <
        01E+4 84k 94e3 94000 94000000 <
        -18n 00320481k 320480999999999982n 320481000 320481000000 <
        -00101.6G +01.E-2 -101599999999990m -101600000000 -101599999999990 <
        .76Ki 010.202Ti 11217217627348992m 11217217627349 11217217627348992 <
        300.3Ki 000000Gi 307507200m 307508 307507200 >
        77200169.00Mi .549Ki 80950244409906176m 80950244409907 80950244409906176 >
        -003084Gi 0110Gi -2974Gi -3193308184576 -3193308184576000 <
        -120011Ti 04000167Ei 9091418546893750271 9091418546893750271 -2826281445058675688 <
        00118310001Mi +0374Ki 121149441398Ki 124057027991552 124057027991552000 >
        030.400009Ei +0.70901Ti 9223372816419515016461760u -9223371257290036599 779564739208462 >
        -89701Ti 42309008Ei 9124744744331640831 9124744744331640831 -6393572154587218920 <
        +9.00Mi 050.0E-10 9437184000000005n 9437185 9437184001 >
        095011Mi +71 99626254407 99626254407 99626254407000 >
        05000000Gi -.10E -92413370000000Ki 8156040010 8156040009633 >
        +8.070Ti 0.00770001n 8873058836152320000001n 8873058836153 8873058836152321 >
        72711700Ei 00.E+008 9223372036854775807 9223372036854775807 -1000 >
        +090.88150883134021099Ti -1000072180270083600100Ti -9223272111579065921205170741n -736937396 -736937397845 >
        .0019070330011081800u -80007300000607297.5Ei -9223372036854775806999999998n 2 1001 >
        064080708110099053E-8 60014600400271051046u 60015241207352152036530e-9 60015241207353 60015241207352153 <
        0040006760111980100010Ei 0.1215806008000000930m 9223372036854775807000121581n -9223372036854775808 -999 >
        -0010100005000610702e-4 0182000560210710000410829024040000Pi 9223371026854275745929800e-6 9223371026854275746 -1010000500062070 <
    "#;

fn rows(table: &str) -> impl Iterator<Item = &str> {
    table.lines().map(str::trim_start).filter(|row| !row.is_empty())
}

fn describe(quantity: Quantity) -> String {
    format!("{quantity} {} {}", quantity.value(), quantity.milli_value())
}

#[track_caller]
fn check(table: &str, n_rows: usize) {
    let mut n = 0;
    for row in rows(table) {
        let (text, want) = row[1..].rsplit_once('"').unwrap();
        let got = Quantity::parse(text).map_or("ERR".into(), describe);
        assert_eq!(got, want.trim(), "{text:?}");
        n += 1;
    }
    assert_eq!(n, n_rows);
}

#[test]
fn quantities_parse_as_upstream() {
    check(RECORDED, 76);
    check(RECORDED_ODD, 77);
}

#[test]
fn sums_and_comparisons_are_those_of_upstream() {
    for row in rows(RECORDED_SUMS) {
        let (left, rest) = row.split_once(' ').unwrap();
        let (right, want) = rest.split_once(' ').unwrap();
        let [left, right] = [left, right].map(|text| Quantity::parse(text).unwrap());
        let order = match left.cmp(&right) {
            Ordering::Less => '<',
            Ordering::Equal => '=',
            Ordering::Greater => '>',
        };
        assert_eq!(format!("{} {order}", describe(left + right)), want, "{row}");
    }
}

#[test]
fn equal_amounts_are_equal_however_written() {
    let hasher = loadmaster_stdx::hash::SeededHashBuilder::default();
    for group in [
        &["0", "0m", "0Ki", "-0", "0e5", "0.000000000000000000000"][..],
        &["1", "1000m", "1.0", "+1", "1e0", "001", "1.000000000000000000000"],
        &["1Gi", "1024Mi", "1073741824", "1.0Gi"],
        &["1e28", "10e27", "1000000000000000000e10"],
    ] {
        let group: Vec<Quantity> = group.iter().map(|text| text.parse().unwrap()).collect();
        for quantity in &group {
            assert_eq!(*quantity, group[0]);
            assert_eq!(hasher.hash_one(quantity), hasher.hash_one(group[0]), "{quantity}");
        }
    }
}

#[test]
fn order_holds_across_scales() {
    let ascending =
        ["-1e40", "-8Ei", "-1", "-1n", "0", "1n", "1m", "1", "1Ki", "9E", "1e40", "1e41"];
    let ascending = ascending.map(|text| Quantity::parse(text).unwrap());
    assert!(ascending.is_sorted_by(|left, right| left < right));
    assert_eq!(ascending[3].max(ascending[7]), Quantity::from_value(1));
}

#[test]
fn made_from_numbers() {
    let cases = [
        (Quantity::default(), "0 0 0"),
        (Quantity::from_value(4096), "4096 4096 4096000"),
        (Quantity::from_value(-3), "-3 -3 -3000"),
        (Quantity::from_milli(1500), "1500m 2 1500"),
        (Quantity::from_milli(2000), "2 2 2000"),
        (Quantity::from_milli(-1), "-1m -1 -1"),
        (Quantity::from_value(i64::MIN), "-9223372036854775808 -9223372036854775808 0"),
    ];
    for (quantity, want) in cases {
        assert_eq!(describe(quantity), want);
    }
    assert!(Quantity::default().is_zero() && !Quantity::from_milli(1).is_zero());
}

#[test]
fn differences() {
    #[track_caller]
    fn check(left: &str, right: &str, want: &str) {
        let [left, right] = [left, right].map(|text| Quantity::parse(text).unwrap());
        assert_eq!((left - right).to_string(), want);
    }
    check("2Gi", "1Gi", "1Gi");
    check("1", "1500m", "-500m");
    check("0", "1Gi", "-1Gi");
    check("1k", "0", "1k");
    check("1", "-9223372036854775808", "9223372036854775809");
}

#[test]
fn fractions_are_rounded_up() {
    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(Quantity::parse(text).unwrap().rounded_up().to_string(), want);
    }
    check("100m", "1");
    check("-100m", "-1");
    check("1999.5", "2k");
    check("1000m", "1");
    check("0.1Ki", "103");
    check("1Gi", "1Gi");
}

#[test]
fn sums_saturate() {
    let huge = Quantity::parse("99999999999999999999999999999999999999999999").unwrap();
    assert_eq!(huge + huge, huge);
    let tiny = Quantity::parse("1n").unwrap();
    assert!(Quantity::parse("1e100").unwrap() + tiny > Quantity::from_value(i64::MAX));
}

#[test]
fn decoded_like_upstream() {
    let cases = [
        ("4", "4 4 4000"),
        ("-4", "-4 -4 -4000"),
        ("0.5", "500m 1 500"),
        ("1e3", "1k 1000 1000000"),
        ("1e-12", "1n 1 1"),
        ("18446744073709551615", "18446744073709551615 -1 -1000"),
        ("9223372036854775807", "9223372036854775807 9223372036854775807 -1000"),
        ("null", "0 0 0"),
        (r#"" 1Gi ""#, "1Gi 1073741824 1073741824000"),
        (
            r#""1K""#,
            r#"invalid quantity "1K": expected a number with an optional suffix such as m, Ki, M or e3"#,
        ),
        (
            r#""""#,
            r#"invalid quantity "": expected a number with an optional suffix such as m, Ki, M or e3"#,
        ),
        ("true", r#"invalid type: boolean `true`, expected a quantity such as 2, "100m" or "1Gi""#),
    ];
    for (json, want) in cases {
        let got = match serde_json::from_str::<Quantity>(json) {
            Ok(quantity) => describe(quantity),
            Err(error) => error.to_string().split(" at line").next().unwrap().to_owned(),
        };
        assert_eq!(got, want, "{json}");
    }
    assert_eq!(serde_json::to_string(&Quantity::from_milli(100)).unwrap(), r#""100m""#);
}

#[test]
fn a_quantity_is_three_words() {
    assert_eq!(size_of::<Quantity>(), 24);
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,40}|[-+0-9.eEinumkKMGTP]{0,60}", other in "[-+]?[0-9.]{1,40}[kKMGTPEi]{0,2}") {
        let quantity = Quantity::parse(&text).unwrap_or_default();
        let sum = quantity + Quantity::parse(&other).unwrap_or_default();
        let _ = (describe(sum), sum.cmp(&quantity));
    }

    #[test]
    fn printed_quantities_parse_to_the_same_value(
        text in "[-+]?[0-9]{1,9}(\\.[0-9]{0,12})?([numkMGTP]|[KMGTP]i|[eE][-+]?[0-9])?",
    ) {
        let quantity = Quantity::parse(&text).unwrap();
        let printed = quantity.to_string();
        let again = Quantity::parse(&printed).unwrap();
        prop_assert_eq!(again, quantity);
        let reprinted = again.to_string();
        // Binary amounts may be printed without a suffix: `31.25Ki` as `32000`, which is decimal and printed as `32k`.
        if quantity.format != Format::Binary || printed.ends_with('i') {
            prop_assert_eq!(&reprinted, &printed);
        }
        prop_assert_eq!(Quantity::parse(&reprinted).unwrap().to_string(), reprinted);
    }

    #[test]
    fn sums_are_exact(left in -(1i64 << 40)..1 << 40, right in -(1i64 << 40)..1 << 40) {
        let milli = Quantity::from_milli(left) + Quantity::from_milli(right);
        prop_assert_eq!(milli, Quantity::from_milli(left + right));
        let mixed = Quantity::from_milli(left) + Quantity::from_value(right);
        prop_assert_eq!(mixed, Quantity::from_milli(left + 1000 * right));
        prop_assert_eq!(mixed.milli_value(), left + 1000 * right);
        prop_assert_eq!(left.cmp(&(1000 * right)), Quantity::from_milli(left).cmp(&Quantity::from_value(right)));
    }
}
