package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/brokerapi/httpapi"
)

// Setting is a field of Config, as its tags declare it. The flag, the environment variable,
// the YAML key, the help text, the checks of its value alone and what a reload takes up are
// made from it.
type Setting struct {
	Name   string // flag without dashes, and YAML key
	Group  string // heading in the help text; a tag holds for the fields that follow
	Help   string // one line
	Arg    string // placeholder of the value in the help text, or its choices; empty for switches
	Driver string // which alone has a use for it; empty: every one
	// Live is a setting that a reload takes up: a bound, threshold or rate, or what is logged.
	// The next decision is made by the new value, and none was promised to anybody else. The
	// others need a restart: etcd, a peer or the guard has been told the lease's timing;
	// listeners, the identity and the broker's process are held open; and policies were judged
	// against the broker at start. The contents of files need no reload.
	Live bool

	preset  string // the default, as it is written; empty: zero
	derived string // formula of a default that depends on other settings
	least   string // smallest value; empty: any
	read    bool   // a file that must be there, with something in it
	schemes string // of a URL, separated by spaces
	with    string // the setting that must be given too
	index   []int
	kind    reflect.Type
}

var settings = declared()

func declared() (list []Setting) {
	group, driver := "", ""
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		tag := f.Tag.Get
		if len(f.Index) == 1 {
			driver = tag("driver")
		}
		if tag("name") == "" {
			continue
		}
		if g := tag("group"); g != "" {
			group = g
		}
		list = append(list, Setting{
			Name: tag("name"), Group: group, Help: tag("help"), Arg: tag("arg"), Driver: driver, Live: tag("live") != "",
			preset: tag("default"), derived: tag("derived"), least: tag("min"), read: tag("file") != "", schemes: tag("url"), with: tag("with"),
			index: f.Index, kind: f.Type,
		})
	}
	return list
}

// Settings returns them in the order of the help text.
func Settings() []Setting {
	words := strings.NewReplacer("{capabilities}", strings.Join(httpapi.Words, ", "), "{drivers}", strings.Join(DriverNames(), ", "))
	list := slices.Clone(settings)
	for i := range list {
		list[i].Help = words.Replace(list[i].Help)
	}
	return list
}

// LiveSettings names the settings that a reload takes up.
func LiveSettings() (names []string) {
	for _, s := range settings {
		if s.Live {
			names = append(names, s.Name)
		}
	}
	return names
}

// Changes compares effective settings: what a reload takes up, "health-fall: 3 → 5", and what
// needs a restart.
func (c Config) Changes(next Config) (live, fixed []string) {
	live = []string{}
	for _, s := range settings {
		from, to := s.value(&c), s.value(&next)
		switch {
		case from == to:
		case s.Live:
			live = append(live, fmt.Sprintf("%s: %s → %s", s.Name, from, to))
		default:
			fixed = append(fixed, fmt.Sprintf("%s: %s → %s needs a restart", s.Name, cmp.Or(from, "empty"), cmp.Or(to, "empty")))
		}
	}
	return live, fixed
}

// Default returns the defaults of the public contract. Derived fields are zero;
// Effective fills them.
func Default() (c Config) {
	for _, s := range settings {
		if s.preset == "" {
			continue
		}
		if err := s.set(&c, []string{s.preset}); err != nil {
			panic(s.Name + ": " + err.Error())
		}
	}
	return c
}

func lookup(name string) (Setting, bool) {
	i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		return Setting{}, false
	}
	return settings[i], true
}

// Env is the name of the setting's environment variable.
func (s Setting) Env() string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Default is the default as a person reads it: a value, a formula, or empty.
func (s Setting) Default() string {
	if s.derived != "" {
		return s.derived
	}
	c := Default()
	return s.value(&c)
}

// Repeatable reports whether the setting is a list.
func (s Setting) Repeatable() bool { return s.kind.Kind() == reflect.Slice }

// choices are the words that the value may be; nil: any.
func (s Setting) choices() []string {
	if !strings.Contains(s.Arg, "|") {
		return nil
	}
	return strings.Split(s.Arg, "|")
}

// field points to it.
func (s Setting) field(c *Config) any {
	return reflect.ValueOf(c).Elem().FieldByIndex(s.index).Addr().Interface()
}

// number is a value that can be compared.
func (s Setting) number(c Config) float64 {
	return reflect.ValueOf(s.field(&c)).Elem().Convert(reflect.TypeFor[float64]()).Float()
}

// lowest is the least number.
func (s Setting) lowest() float64 {
	var c Config
	if err := s.set(&c, []string{s.least}); err != nil {
		panic(s.Name + ": " + err.Error())
	}
	return s.number(c)
}

// set parses values into the field. The error says what is wrong with the value
// and how to write it; the caller adds the name.
func (s Setting) set(c *Config, values []string) (err error) {
	last := values[len(values)-1]
	switch p := s.field(c).(type) {
	case *string:
		*p = last
	case *[]string:
		*p = nil
		for _, item := range strings.Split(strings.Join(values, ","), ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
	case *bool:
		if *p, err = strconv.ParseBool(last); err != nil {
			return errors.New("not a switch: write true or false")
		}
	case *int:
		if *p, err = strconv.Atoi(last); err != nil {
			return fmt.Errorf("not a whole number: write digits only, such as %s", s.Default())
		}
	case *float64:
		if *p, err = strconv.ParseFloat(last, 64); err != nil || *p != *p {
			return errors.New("not a number: write digits, such as 0.5 or 100")
		}
	case *time.Duration:
		if *p, err = time.ParseDuration(last); err != nil {
			return fmt.Errorf("not a duration: write a number with a unit, such as %s", s.example())
		}
	}
	return nil
}

// example is how a value may be written.
func (s Setting) example() string {
	c := Default().Effective()
	if v := s.value(&c); v != "" && v != "0s" {
		return v
	}
	if s.Arg == "DURATION" {
		return "10s"
	}
	return s.Arg
}

// value prints the field as it is written in a setting.
func (s Setting) value(c *Config) string {
	switch p := s.field(c).(type) {
	case *[]string:
		return strings.Join(*p, ",")
	case *time.Duration:
		return FormatDuration(*p)
	case *float64:
		return strconv.FormatFloat(*p, 'g', -1, 64)
	default:
		return fmt.Sprint(reflect.ValueOf(p).Elem())
	}
}

// FormatDuration rounds to milliseconds: what is shown must fit a table.
func FormatDuration(d time.Duration) string {
	if r := d.Round(time.Millisecond); r != 0 {
		return r.String()
	}
	return d.String()
}
