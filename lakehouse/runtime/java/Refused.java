package lakehouse.values;

/** Why a text is not a row of the declared types. It has no stack: of bad input there may be much. */
final class Refused extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String field;
  private final String why;

  Refused(String field, String why) {
    super(why, null, false, false);
    this.field = field;
    this.why = why;
  }

  /** The same, said of a field that holds it. */
  Refused within(String name) {
    return new Refused(field.isEmpty() || field.startsWith("[") ? name + field : name + "." + field, why);
  }

  @Override
  public String getMessage() {
    return field.isEmpty() ? why : "field=" + field + ": " + why;
  }
}
