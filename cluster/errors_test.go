package cluster

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcdAnswers is every error of rpctypes by its name there, as it arrives.
var etcdAnswers = map[string]struct {
	err  error
	want Class
}{
	"ErrGRPCLeaseNotFound": {rpctypes.ErrGRPCLeaseNotFound, ClassLeaseNotFound},
	"ErrGRPCNoSpace":       {rpctypes.ErrGRPCNoSpace, ClassNoSpace},

	"ErrGRPCNoLeader":                   {rpctypes.ErrGRPCNoLeader, ClassNoLeader},
	"ErrGRPCNotLeader":                  {rpctypes.ErrGRPCNotLeader, ClassNoLeader},
	"ErrGRPCLeaderChanged":              {rpctypes.ErrGRPCLeaderChanged, ClassNoLeader},
	"ErrGRPCTimeoutDueToLeaderFail":     {rpctypes.ErrGRPCTimeoutDueToLeaderFail, ClassNoLeader},
	"ErrGRPCTimeoutDueToConnectionLost": {rpctypes.ErrGRPCTimeoutDueToConnectionLost, ClassNoLeader},
	"ErrGRPCUnhealthy":                  {rpctypes.ErrGRPCUnhealthy, ClassNoLeader},

	"ErrGRPCTimeout":                 {rpctypes.ErrGRPCTimeout, ClassOverloaded},
	"ErrGRPCTimeoutWaitAppliedIndex": {rpctypes.ErrGRPCTimeoutWaitAppliedIndex, ClassOverloaded},
	"ErrGRPCRequestTooManyRequests":  {rpctypes.ErrGRPCRequestTooManyRequests, ClassOverloaded},

	"ErrGRPCStopped":          {rpctypes.ErrGRPCStopped, ClassUnreachable},
	"ErrGRPCCanceled":         {rpctypes.ErrGRPCCanceled, ClassUnreachable},
	"ErrGRPCWatchCanceled":    {rpctypes.ErrGRPCWatchCanceled, ClassUnreachable},
	"ErrGRPCDeadlineExceeded": {rpctypes.ErrGRPCDeadlineExceeded, ClassTimeout},

	"ErrGRPCUserEmpty":            {rpctypes.ErrGRPCUserEmpty, ClassAuth},
	"ErrGRPCUserNotFound":         {rpctypes.ErrGRPCUserNotFound, ClassAuth},
	"ErrGRPCUserAlreadyExist":     {rpctypes.ErrGRPCUserAlreadyExist, ClassAuth},
	"ErrGRPCAuthFailed":           {rpctypes.ErrGRPCAuthFailed, ClassAuth},
	"ErrGRPCAuthNotEnabled":       {rpctypes.ErrGRPCAuthNotEnabled, ClassAuth},
	"ErrGRPCAuthOldRevision":      {rpctypes.ErrGRPCAuthOldRevision, ClassAuth},
	"ErrGRPCInvalidAuthToken":     {rpctypes.ErrGRPCInvalidAuthToken, ClassAuth},
	"ErrGRPCInvalidAuthMgmt":      {rpctypes.ErrGRPCInvalidAuthMgmt, ClassAuth},
	"ErrGRPCPermissionDenied":     {rpctypes.ErrGRPCPermissionDenied, ClassAuth},
	"ErrGRPCPermissionNotGranted": {rpctypes.ErrGRPCPermissionNotGranted, ClassAuth},
	"ErrGRPCPermissionNotGiven":   {rpctypes.ErrGRPCPermissionNotGiven, ClassAuth},
	"ErrGRPCRoleEmpty":            {rpctypes.ErrGRPCRoleEmpty, ClassAuth},
	"ErrGRPCRoleNotFound":         {rpctypes.ErrGRPCRoleNotFound, ClassAuth},
	"ErrGRPCRoleNotGranted":       {rpctypes.ErrGRPCRoleNotGranted, ClassAuth},
	"ErrGRPCRoleAlreadyExist":     {rpctypes.ErrGRPCRoleAlreadyExist, ClassAuth},
	"ErrGRPCRootUserNotExist":     {rpctypes.ErrGRPCRootUserNotExist, ClassAuth},
	"ErrGRPCRootRoleNotExist":     {rpctypes.ErrGRPCRootRoleNotExist, ClassAuth},

	// Requests that are wrong, and answers that say nothing of etcd's or our health.
	"ErrGRPCEmptyKey":                {rpctypes.ErrGRPCEmptyKey, ClassOther},
	"ErrGRPCKeyNotFound":             {rpctypes.ErrGRPCKeyNotFound, ClassOther},
	"ErrGRPCValueProvided":           {rpctypes.ErrGRPCValueProvided, ClassOther},
	"ErrGRPCLeaseProvided":           {rpctypes.ErrGRPCLeaseProvided, ClassOther},
	"ErrGRPCTooManyOps":              {rpctypes.ErrGRPCTooManyOps, ClassOther},
	"ErrGRPCDuplicateKey":            {rpctypes.ErrGRPCDuplicateKey, ClassOther},
	"ErrGRPCInvalidClientAPIVersion": {rpctypes.ErrGRPCInvalidClientAPIVersion, ClassOther},
	"ErrGRPCInvalidSortOption":       {rpctypes.ErrGRPCInvalidSortOption, ClassOther},
	"ErrGRPCCompacted":               {rpctypes.ErrGRPCCompacted, ClassOther},
	"ErrGRPCFutureRev":               {rpctypes.ErrGRPCFutureRev, ClassOther},
	"ErrGRPCLeaseExist":              {rpctypes.ErrGRPCLeaseExist, ClassOther},
	"ErrGRPCLeaseTTLTooLarge":        {rpctypes.ErrGRPCLeaseTTLTooLarge, ClassOther},
	"ErrGRPCRequestTooLarge":         {rpctypes.ErrGRPCRequestTooLarge, ClassOther},

	// The cluster's own make-up. A person changes it.
	"ErrGRPCMemberExist":                   {rpctypes.ErrGRPCMemberExist, ClassOther},
	"ErrGRPCPeerURLExist":                  {rpctypes.ErrGRPCPeerURLExist, ClassOther},
	"ErrGRPCMemberNotEnoughStarted":        {rpctypes.ErrGRPCMemberNotEnoughStarted, ClassOther},
	"ErrGRPCMemberBadURLs":                 {rpctypes.ErrGRPCMemberBadURLs, ClassOther},
	"ErrGRPCMemberNotFound":                {rpctypes.ErrGRPCMemberNotFound, ClassOther},
	"ErrGRPCMemberNotLearner":              {rpctypes.ErrGRPCMemberNotLearner, ClassOther},
	"ErrGRPCLearnerNotReady":               {rpctypes.ErrGRPCLearnerNotReady, ClassOther},
	"ErrGRPCTooManyLearners":               {rpctypes.ErrGRPCTooManyLearners, ClassOther},
	"ErrGRPCClusterIDMismatch":             {rpctypes.ErrGRPCClusterIDMismatch, ClassOther},
	"ErrGRPCClusterIdMismatch":             {rpctypes.ErrGRPCClusterIDMismatch, ClassOther},
	"ErrGRPCNotCapable":                    {rpctypes.ErrGRPCNotCapable, ClassOther},
	"ErrGRPCCorrupt":                       {rpctypes.ErrGRPCCorrupt, ClassOther},
	"ErrGRPCNotSupportedForLearner":        {rpctypes.ErrGRPCNotSupportedForLearner, ClassOther},
	"ErrGRPCBadLeaderTransferee":           {rpctypes.ErrGRPCBadLeaderTransferee, ClassOther},
	"ErrGRPCWrongDowngradeVersionFormat":   {rpctypes.ErrGRPCWrongDowngradeVersionFormat, ClassOther},
	"ErrGRPCInvalidDowngradeTargetVersion": {rpctypes.ErrGRPCInvalidDowngradeTargetVersion, ClassOther},
	"ErrGRPCClusterVersionUnavailable":     {rpctypes.ErrGRPCClusterVersionUnavailable, ClassOther},
	"ErrGRPCDowngradeInProcess":            {rpctypes.ErrGRPCDowngradeInProcess, ClassOther},
	"ErrGRPCNoInflightDowngrade":           {rpctypes.ErrGRPCNoInflightDowngrade, ClassOther},
}

func TestEveryAnswerOfEtcdHasItsClass(t *testing.T) {
	for name, c := range etcdAnswers {
		t.Run(name, func(t *testing.T) {
			wire := c.err
			for form, err := range map[string]error{
				"as it arrives":        wire,
				"as a value":           rpctypes.Error(wire),
				"as this package says": fmt.Errorf("renew lease: %w", cause(t.Context(), wire)),
				"wrapped twice":        fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", wire)),
				"with a proxy's code":  status.Error(codes.Unknown, status.Convert(wire).Message()),
			} {
				got := Classify(err)
				if form == "with a proxy's code" && (c.want == ClassUnreachable || c.want == ClassTimeout) {
					continue // these have their class by the code alone
				}
				if got != c.want {
					t.Errorf("%s: %q, want %q: %v", form, got, c.want, err)
				}
			}
		})
	}
}

// A version of etcd that has more answers must not go unnoticed.
func TestNoAnswerOfEtcdIsMissing(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "go.etcd.io/etcd/api/v3/v3rpc/rpctypes").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "error.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, name := range v.Names {
			if !strings.HasPrefix(name.Name, "ErrGRPC") {
				continue
			}
			found++
			if _, ok := etcdAnswers[name.Name]; !ok {
				t.Errorf("rpctypes.%s has no row: say its class", name.Name)
			}
		}
		return true
	})
	if found < 60 {
		t.Errorf("%d answers found in rpctypes: is the file another?", found)
	}
}

func TestEveryCodeHasItsClass(t *testing.T) {
	want := map[codes.Code]Class{
		codes.OK:                 ClassNone,
		codes.Canceled:           ClassUnreachable,
		codes.Unknown:            ClassOther,
		codes.InvalidArgument:    ClassOther,
		codes.DeadlineExceeded:   ClassTimeout,
		codes.NotFound:           ClassOther,
		codes.AlreadyExists:      ClassOther,
		codes.PermissionDenied:   ClassAuth,
		codes.ResourceExhausted:  ClassOverloaded,
		codes.FailedPrecondition: ClassOther,
		codes.Aborted:            ClassOther,
		codes.OutOfRange:         ClassOther,
		codes.Unimplemented:      ClassOther,
		codes.Internal:           ClassOther,
		codes.Unavailable:        ClassUnreachable,
		codes.DataLoss:           ClassOther,
		codes.Unauthenticated:    ClassAuth,
	}
	const last = codes.Unauthenticated
	if len(want) != int(last)+1 || (last+1).String() != fmt.Sprintf("Code(%d)", last+1) {
		t.Errorf("%d codes have a class: gRPC has another number", len(want))
	}
	for code, class := range want {
		if got := Classify(status.Error(code, "in words that nobody knows")); got != class {
			t.Errorf("%s: %q, want %q", code, got, class)
		}
	}
}

func TestKnownMessagesOfOtherCodesHaveTheirClass(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want Class
	}{
		{"raft dropped the proposal", status.Error(codes.Unknown, "raft proposal dropped"), ClassNoLeader},
		{"the leader stepped down", status.Error(codes.Unknown, "not a primary lessor"), ClassNoLeader},
		{"the member stops", status.Error(codes.Unknown, "raft: stopped"), ClassUnreachable},
		{"a member's clock ended our time", status.Error(codes.Unknown, "context deadline exceeded"), ClassTimeout},
		{"something else without a code", status.Error(codes.Unknown, "raft proposal"), ClassOther},
		{"the connection broke in the middle", status.Error(codes.Internal, "stream terminated by RST_STREAM with error code: PROTOCOL_ERROR"), ClassUnreachable},
		{"a proxy cut the answer off", status.Error(codes.Internal, "server closed the stream without sending trailers"), ClassUnreachable},
		{"the answer is too large for us", status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"), ClassOther},
		{"too many streams", status.Error(codes.ResourceExhausted, "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM"), ClassOverloaded},
		{"not etcd", status.Error(codes.Unimplemented, "unknown service etcdserverpb.Lease"), ClassOther},
		{"a proxy without a backend", status.Error(codes.Unavailable, "unexpected HTTP status code received from server: 503 (Service Unavailable)"), ClassUnreachable},
	} {
		for _, err := range []error{c.err, fmt.Errorf("renew lease: %w", cause(t.Context(), c.err)), fmt.Errorf("outer: %w", c.err)} {
			if got := Classify(err); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		}
	}
}

func TestAnotherEndpointIsTriedWhereItMayDoBetter(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"no leader behind it", rpctypes.ErrNoLeader, true},
		{"a learner", rpctypes.ErrGRPCNotSupportedForLearner, true},
		{"unreachable", status.Error(codes.Unavailable, "connection refused"), true},
		{"TLS refused", status.Error(codes.Unavailable, RefusedConnection+": x509"), true},
		{"wrong password", rpctypes.ErrAuthFailed, false},
		{"no space", rpctypes.ErrNoSpace, false},
		{"not from gRPC", errors.New("no idea"), false},
	} {
		if got := elsewhere(fmt.Errorf("renew lease: %w", c.err)); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
