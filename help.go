package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// appHelp is the text of holdfast --help.
func appHelp(verbs []*verb) string {
	var b strings.Builder
	b.WriteString("holdfast keeps an unmodified message broker attached to its cluster, and keeps\n" +
		"clients away from it when it is not.\n\nUsage: holdfast VERB [FLAG…]\n\nVerbs:\n")
	for _, v := range verbs {
		fmt.Fprintf(&b, "  %-22s %s\n", strings.TrimSpace(v.name+" "+v.args), v.short)
	}
	b.WriteString("\n'holdfast VERB --help' tells more; 'holdfast run --help' lists all settings.\n" +
		"Exit codes: 0 done, 1 failed, 2 usage or settings, 3 refused for safety.\n")
	return b.String()
}

// verbHelp is the text of holdfast VERB --help.
func verbHelp(v *verb) string {
	var b strings.Builder
	line := "Usage: holdfast " + v.name
	if len(v.flags) > 0 {
		line += " [FLAG…]"
	}
	if v.args != "" {
		line += " " + v.args
	}
	fmt.Fprintf(&b, "%s\n\n%s\n", line, v.long)
	groups := map[string]options{}
	for _, o := range v.flags {
		if o.hidden {
			continue
		}
		groups[o.group] = append(groups[o.group], o)
	}
	for _, g := range []string{"", "file", "etcd", "broker", "lease", "recovery", "topics", "health", "listeners", "logging"} {
		if len(groups[g]) == 0 {
			continue
		}
		title := "Flags"
		if g != "" {
			title = strings.ToUpper(g[:1]) + g[1:]
		}
		fmt.Fprintf(&b, "\n%s:\n", title)
		for _, o := range groups[g] {
			writeOption(&b, o)
		}
	}
	return b.String()
}

const helpColumn = 34

// writeOption prints one flag, its meaning, and its default, in lines of at most
// 100 characters.
func writeOption(b *strings.Builder, o *option) {
	words := strings.Fields(o.help)
	if o.def == "required" {
		words = append(words, "(required)")
	} else if o.def != "" && o.def != "false" {
		words = append(words, "(default: "+o.def+")") // one word: it is not broken
	}
	left := "  " + o.String()
	if n := utf8.RuneCountInString(left); n >= helpColumn {
		b.WriteString(left + "\n")
		left = ""
	}
	for _, line := range wrap(words, 100-helpColumn) {
		b.WriteString(pad(left, helpColumn) + line + "\n")
		left = ""
	}
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// wrap puts words into lines of at most width characters, if each word allows it.
func wrap(words []string, width int) []string {
	var lines []string
	line := ""
	for _, word := range words {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = word
			continue
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
