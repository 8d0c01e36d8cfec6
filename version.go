package main

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// buildVersion is set by the linker: -X main.buildVersion=v1.2.3
var buildVersion string

// version is the linker's word, else that of the go command: the module's, or the revision's.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && buildVersion == "" {
		return strings.Trim(or(info.Main.Version, "devel"), "()")
	}
	return or(buildVersion, "unknown")
}

func versionText() string { return version() + " (" + runtime.Version() + ")" }
