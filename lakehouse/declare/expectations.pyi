"""Written by `python -m tools.expectation_stub` from great-expectations 1.24.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation of Great Expectations by name and arguments, resolved when it is used."""

    type: str
    arguments: tuple[tuple[str, object], ...] = ()

    @property
    def kwargs(self) -> dict[str, object]: ...

class _Expect:
    """Every expectation of Great Expectations that can be judged, without importing it."""

    def column_distinct_values_to_be_in_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the set of distinct column values to be contained by a given set."""

    def column_distinct_values_to_contain_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the set of distinct column values to contain a given set."""

    def column_distinct_values_to_equal_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the set of distinct column values to equal a given set."""

    def column_max_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column maximum to be between a minimum value and a maximum value."""

    def column_mean_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column mean to be between a minimum value and a maximum value (inclusive)."""

    def column_median_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column median to be between a minimum value and a maximum value."""

    def column_min_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column minimum to be between a minimum value and a maximum value."""

    def column_most_common_value_to_be_in_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        ties_okay: bool | None = None,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the most common value to be within the designated value set."""

    def column_pair_values_a_to_be_greater_than_b(
        self,
        column_A: str,
        column_B: str,
        *,
        or_equal: bool | None = None,
        mostly: float = 1,
        ignore_row_if: Literal[
            "both_values_are_missing", "either_value_is_missing", "neither"
        ] = "both_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the values in column A to be greater than column B."""

    def column_pair_values_to_be_equal(
        self,
        column_A: str,
        column_B: str,
        *,
        mostly: float = 1,
        ignore_row_if: Literal[
            "both_values_are_missing", "either_value_is_missing", "neither"
        ] = "both_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the values in column A to be the same as column B."""

    def column_pair_values_to_be_in_set(
        self,
        column_A: str,
        column_B: str,
        *,
        value_pairs_set: Sequence[tuple[object, object]],
        mostly: float = 1,
        ignore_row_if: Literal[
            "both_values_are_missing", "either_value_is_missing", "neither"
        ] = "both_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the paired values from columns A and B to belong to a set of valid pairs."""

    def column_proportion_of_non_null_values_to_be_between(
        self,
        column: str,
        *,
        min_value: float | None = None,
        max_value: float | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the proportion of non-null values to be between a minimum value and a maximum value."""

    def column_proportion_of_unique_values_to_be_between(
        self,
        column: str,
        *,
        min_value: float | None = None,
        max_value: float | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the proportion of unique values to be between a minimum value and a maximum value."""

    def column_stdev_to_be_between(
        self,
        column: str,
        *,
        min_value: float | None = None,
        max_value: float | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column standard deviation to be between a minimum value and a maximum value."""

    def column_sum_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column sum to be between a minimum value and a maximum value."""

    def column_to_exist(
        self,
        column: str,
        *,
        column_index: int | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Checks for the existence of a specified column within a table."""

    def column_type_to_be(
        self,
        column: str,
        *,
        type_: str,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect a column to be of a specified data type."""

    def column_unique_value_count_to_be_between(
        self,
        column: str,
        *,
        min_value: int | None = None,
        max_value: int | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the number of unique values to be between a minimum value and a maximum value."""

    def column_value_lengths_to_be_between(
        self,
        column: str,
        *,
        min_value: int | None = None,
        max_value: int | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings with length between a minimum value and a maximum value (inclusive)."""

    def column_value_lengths_to_equal(
        self,
        column: str,
        *,
        value: float,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings with length equal to the provided value."""

    def column_value_z_scores_to_be_less_than(
        self,
        column: str,
        *,
        threshold: float,
        double_sided: bool,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the Z-scores of a column's values to be less than a given threshold."""

    def column_values_to_be_between(
        self,
        column: str,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be between a minimum value and a maximum value (inclusive)."""

    def column_values_to_be_decreasing(
        self,
        column: str,
        *,
        strictly: bool,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column values to be decreasing."""

    def column_values_to_be_in_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect each column value to be in a given set."""

    def column_values_to_be_increasing(
        self,
        column: str,
        *,
        strictly: bool,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column values to be increasing."""

    def column_values_to_be_json_parseable(
        self,
        column: str,
        *,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be data written in JavaScript Object Notation."""

    def column_values_to_be_null(
        self,
        column: str,
        *,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column values to be null."""

    def column_values_to_be_unique(
        self,
        column: str,
        *,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect each column value to be unique."""

    def column_values_to_match_regex(
        self,
        column: str,
        *,
        regex: str,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings that match a given regular expression."""

    def column_values_to_match_regex_list(
        self,
        column: str,
        *,
        regex_list: Sequence[str],
        match_on: Literal["any", "all"],
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings that can be matched to either any of or all of a list of regular expressions."""

    def column_values_to_match_strftime_format(
        self,
        column: str,
        *,
        strftime_format: str,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings representing a date or time with a given format."""

    def column_values_to_not_be_in_set(
        self,
        column: str,
        *,
        value_set: Sequence[object],
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect column entries to not be in the set."""

    def column_values_to_not_be_null(
        self,
        column: str,
        *,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column values to not be null."""

    def column_values_to_not_be_outliers(
        self,
        column: str,
        *,
        method: Literal["iqr", "std"] = "iqr",
        multiplier: float = 1.5,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect numeric column values to not be statistical outliers."""

    def column_values_to_not_match_regex(
        self,
        column: str,
        *,
        regex: str,
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings that do NOT match a given regular expression."""

    def column_values_to_not_match_regex_list(
        self,
        column: str,
        *,
        regex_list: Sequence[str],
        mostly: float = 1,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the column entries to be strings that do not match any of a list of regular expressions."""

    def compound_columns_to_be_unique(
        self,
        column_list: Sequence[str],
        *,
        mostly: float = 1,
        ignore_row_if: Literal[
            "all_values_are_missing", "any_value_is_missing", "never"
        ] = "all_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the compound columns to be unique."""

    def multicolumn_sum_to_equal(
        self,
        column_list: Sequence[str],
        *,
        sum_total: float,
        mostly: float = 1,
        ignore_row_if: Literal[
            "all_values_are_missing", "any_value_is_missing", "never"
        ] = "all_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect that the sum of row values in a specified column list is the same for each row, and equal to a specified sum total."""

    def multicolumn_values_to_be_equal(
        self,
        column_list: Sequence[str],
        *,
        mostly: float = 1,
        ignore_row_if: Literal[
            "all_values_are_missing", "any_value_is_missing", "never"
        ] = "all_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the values in each row of the specified columns to be equal."""

    def select_column_values_to_be_unique_within_record(
        self,
        column_list: Sequence[str],
        *,
        mostly: float = 1,
        ignore_row_if: str = "all_values_are_missing",
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the values for each record to be unique across the columns listed."""

    def table_column_count_to_be_between(
        self,
        *,
        min_value: float | date | datetime | None = None,
        max_value: float | date | datetime | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the number of columns in a table to be between two values."""

    def table_column_count_to_equal(
        self,
        *,
        value: int,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the number of columns in a table to equal a value."""

    def table_columns_to_match_ordered_list(
        self,
        column_list: Sequence[str],
        *,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the columns in a table to exactly match a specified list."""

    def table_columns_to_match_set(
        self,
        *,
        column_set: Sequence[str] | None = None,
        exact_match: bool | None = True,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the columns in a table to match an unordered set."""

    def table_row_count_to_be_between(
        self,
        *,
        min_value: int | datetime | None = None,
        max_value: int | datetime | None = None,
        strict_min: bool = False,
        strict_max: bool = False,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the number of rows to be between two values."""

    def table_row_count_to_equal(
        self,
        *,
        value: int,
        row_condition: str | None = None,
        condition_parser: Literal["spark", "great_expectations"] | None = None,
        description: str | None = None,
        notes: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Expect the number of rows to equal a value."""

expect: _Expect
